"""The bench runs, sees what is wrong, and leaves nothing behind. How fast anything is, is no matter here."""

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.__main__ import parse
from bench.cpu_share import cpu_shares
from bench.load.client import Client, Reading
from bench.load.sampling import ProcessTree, summary_of
from bench.load.starts import measure_runs
from bench.report import busy_text, problems, rows, table_text
from bench.servers import ceiling

ROOT = Path(__file__).parents[2]


async def test_the_ceiling_answers_what_the_client_asks():
    async with ceiling() as target, Client(target) as client:
        await client.save_agent()
        measured = await measure_runs(client, ProcessTree(target.pid), lanes=2, total=4)
        reading = await client.read(await client.start(n=50), stamps=True)
    assert (measured.runs, measured.sequence_errors, measured.not_completed) == (4, 0, 0)
    assert (reading.events, reading.terminal, len(reading.latencies)) == (52, "completed", 50)


async def test_a_few_runs_at_a_real_mesh_are_measured_and_written(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", "--quick", "--modes", "runs", "--runs", "4", "--no-ceiling", "--output", tmp_path,
        "--replicas", "runs=2,gateway=2", cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    assert "CPU of such a run" in output.decode()
    (written,) = tmp_path.iterdir()
    document = json.loads(written.read_text("utf-8"))
    alone, many = document["mesh"]["runs"]
    assert (alone["lanes"], many["lanes"], many["runs"]) == (1, 32, 4)
    assert many["cpu_ms_per_run"] > 0
    assert {"runs", "gateway", "bus"} <= set(many["cpu_ms_of"])
    assert document["problems"] == []
    assert [part["lanes"] for part in document["replicated_mesh"]["runs"]] == [1, 32]
    assert "with replicas" in output.decode()
    assert {"runs-2", "gateway-2"} <= set(document["replicated_mesh"]["runs"][0]["cpu_ms_of"])


@pytest.mark.parametrize(
    ("ids", "errors"), [([1, 2, 3], 0), ([1, 3], 1), ([1, 1, 2], 1), ([2, 3], 1), ([1, 3, 2, 4], 3)]
)
def test_every_break_of_a_sequence_is_counted(ids, errors):
    reading = Reading(after=0)
    for sequence in ids:
        reading.take(b"id: %d\nevent: content.delta\ndata: {}\n\n" % sequence, stamps=False)
    assert reading.sequence_errors == errors


def test_wrong_results_are_problems_of_the_bench():
    good = {"lanes": 1, "sequence_errors": 0, "not_completed": 0}
    assert problems({"runs": [good], "big": [{"terminal": "completed", "sequence_errors": 0}]}) == []
    assert problems({"runs": [{**good, "not_completed": 2}]}) == ["runs: 2 runs did not complete"]
    assert problems({"history": [{"runs": {"sequence_errors": 3}}]}) == ["history: 3 sequence errors"]
    assert problems({"big": [{"terminal": "failed"}]}) == ["big: a run ended as failed"]


def test_the_table_shows_medians_and_ratios():
    def run(rate):
        return SimpleNamespace(
            lanes=32, runs_per_second=rate, cpu_ms_per_run=1.0, first_event=summary_of([0.01, 0.02, 0.03])
        )

    (first, *_) = rows({"runs": [run(50), run(400), run(100)]}, {"runs": [run(1000)]})
    assert (first.ours, first.ceiling, first.ratio) == (100, 1000, 0.1)
    assert "0.10" in table_text([first])
    assert "with replicas" not in table_text([first])


def test_replicas_have_a_column_of_their_own():
    result = SimpleNamespace(lanes=32, runs_per_second=100, cpu_ms_per_run=1.0, first_event=summary_of([0.01]))
    more = SimpleNamespace(lanes=32, runs_per_second=170, cpu_ms_per_run=1.0, first_event=summary_of([0.01]))
    (first, *_) = rows({"runs": [result]}, {}, {"runs": [more]})
    assert (first.ours, first.replicated, first.ceiling) == (100, 170, None)
    heading, line = table_text([first]).splitlines()
    assert "with replicas" in heading
    assert "170.00 /s" in line


@pytest.mark.parametrize("arguments", [["--modes", "nonsense"], ["--modes", ","], ["--runs", "0"], ["--subs", "1,x"]])
def test_a_wrong_option_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        parse(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_table_shows_what_replicas_bring_and_who_was_busiest():
    def run(rate, cpu):
        return SimpleNamespace(
            lanes=32,
            runs_per_second=rate,
            cpu_ms_per_run=1.0,
            first_event=summary_of([0.01]),
            cpu_ms_of={"runs": cpu, "gateway": 1.0},
        )

    (first, *_) = rows({"runs": [run(20, 5.0)]}, {}, {"runs": [run(40, 2.5)]})
    assert first.gain == 2.0
    assert "2.00" in table_text([first])
    busiest, other = busy_text({"runs": [run(20, 5.0)]}, 0.1).splitlines()
    assert busiest.split()[0] == "runs"
    assert "0.100 cores, 100% of 0.1" in busiest
    assert "20% of 0.1" in other
    assert "of 0.1" not in busy_text({"runs": [run(20, 5.0)]}, None)


@pytest.mark.parametrize(
    "others", [[], ["--replicas", "runs=2", "--data-dir", "here"], ["--replicas", "runs=2", "--cpu-share", "0.001"]]
)
def test_a_share_of_cpu_is_refused_where_it_would_say_nothing(others, capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu-share", "0.1", *others])
    assert "--cpu-share" in capsys.readouterr().err


async def test_a_process_is_bounded_by_a_group_that_goes_with_it():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    with ExitStack() as stack:
        try:
            shares = stack.enter_context(cpu_shares(0.25))
        except SystemExit as reason:
            process.kill()
            await process.wait()
            pytest.skip(str(reason))
        shares.give([process.pid])
        group = shares.groups[process.pid]
        assert (group / "cgroup.procs").read_text().split() == [str(process.pid)]
        if (group / "cpu.max").exists():
            assert (group / "cpu.max").read_text().split() == ["2500", "10000"]
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            assert (quota, period) == (2500, 10000)
        process.kill()
        await process.wait()
    assert not group.parent.exists()
