"""What an adapter adds is measured on turns that were whole. How much it is, is no matter here."""

import json

import pytest

from bench import agentcore
from bench.overhead import Measured, compared, measured


def test_the_bench_of_agentcore_measures_both_ways(capsys):
    assert agentcore.run(["--turns", "1", "--events", "20"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {*compared(Measured(1, 2, 1), Measured(1, 2, 1), 0), "alone_turn_ms"}
    assert min(figures[name] for name in ("sdk_turn_ms", "adapter_turn_ms", "alone_turn_ms", "host_mib")) > 0


@pytest.mark.parametrize("number", ["0", "-1"])
def test_numbers_that_measure_nothing_are_refused(number, capsys):
    with pytest.raises(SystemExit):
        agentcore.run(["--turns", number])
    assert "must be 1 or more" in capsys.readouterr().err


async def test_an_answer_that_is_not_whole_is_no_measurement():
    async def short(message: str) -> tuple[int, float]:
        return 1, 0.001

    with pytest.raises(RuntimeError, match="sdk: 1 deltas came, not 4"):
        await measured({"sdk": short}, str, 1, 3)


async def test_figures_are_medians_after_a_round_that_warms_up():
    seconds = iter([9.0, 9.0, 0.001, 0.005, 0.002, 0.007, 0.009, 0.006])

    async def play(message: str) -> tuple[int, float]:
        return int(message), next(seconds)

    (made,) = (await measured({"sdk": play}, str, 3, 2)).values()
    assert (made.turn_ms, made.long_turn_ms, made.event_ms) == pytest.approx((2.0, 6.0, 2.0))
