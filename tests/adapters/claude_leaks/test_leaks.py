"""Nothing is left of turns that were cancelled, failed or whose program was killed (I20)."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from conformance.plane.binding import Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.target import Target
from harness.common.v1 import placement_pb2
from tests.adapters.claude_leaks.campaign import Held, held, play, reached
from tests.adapters.claude_leaks.counted_host import COUNT_FILE
from tests.adapters.processes import AdapterProcess
from tests.adapters.rig import Conversation
from tests.standins.messages import serving_in_thread
from tests.support.adapters import folder

__all__ = ["folder"]
LONG = "HARNESS_LEAK_TURNS"
SHORT_TURNS = 16
ENDS = {
    "completes: run_completed",
    "fails: run_failed",
    "cancelled: run_cancelled",
    "killed: run_failed",
}
# Of the long one's second half. Objects went up and down by 1,500 over 540 turns, and what a single turn holds is some hundreds: a hundred turns that left a
# part of it would be more than this. Memory is a coarse bound beside it, for what is no object: allocators keep a few MiB for each thread.
MOST_OBJECTS = 4_000
MOST_MEMORY_MIB = 16.0
LEAST_LONG_TURNS = 200


@pytest.mark.timeout(600)
async def test_i20_nothing_is_left_of_cancels_failures_and_kills(folder):
    await _leaves_nothing(folder, SHORT_TURNS, warm_up=8)


@pytest.mark.skipif(
    LONG not in os.environ,
    reason=f"takes minutes: set {LONG} to how many turns are to be played, {LEAST_LONG_TURNS} at least",
)
@pytest.mark.timeout(3600)
async def test_i20_nothing_is_left_of_many(folder, record_testsuite_property):
    turns = max(int(os.environ[LONG]), LEAST_LONG_TURNS)
    before, after, ends = await _leaves_nothing(folder, turns - turns // 2, warm_up=turns // 2)
    assert after.objects - before.objects <= MOST_OBJECTS, (before, after)
    assert after.memory_mib - before.memory_mib <= MOST_MEMORY_MIB, (before, after)
    for name, value in (("before", before), ("after", after), ("ends", ends)):
        record_testsuite_property(name, str(value))


async def _leaves_nothing(folder: Path, turns: int, *, warm_up: int) -> tuple[Held, Held, dict[str, int]]:
    (folder / "key").write_text("k\n")
    (folder / "work").mkdir()
    canaries = Canaries()
    host = AdapterProcess(
        folder,
        module="tests.adapters.claude_leaks.counted_host",
        environment={
            "ANTHROPIC_API_KEY_FILE": "-",
            "TMPDIR": str(folder / "work"),
            COUNT_FILE: str(folder / "count"),
        },
    )
    await host.start()
    with serving_in_thread() as model:
        async with Facades(canaries, host.address) as facades:
            target = Target(host.address, canaries)

            def conversation() -> Conversation:
                settings = {"credential_file": str(folder / "key"), "base_url": model.url, "max_retries": 0}
                setting = Setting(
                    target,
                    facades,
                    ClaudeAdapter().descriptor,
                    Observations(),
                    False,
                    placement_pb2.PLACEMENT_IN_PROCESS,
                    {**settings, "model": "claude-standin-1", "workspace_root": str(folder / "work")},
                    {},
                )
                return Conversation(setting, target)

            def now() -> Held:
                return held(host.pid, folder / "work")

            async def counted() -> Held:
                (folder / "count").unlink(missing_ok=True)
                os.kill(host.pid, signal.SIGUSR1)
                await reached((folder / "count").exists, "the host counts its objects")
                return replace(now(), objects=int((folder / "count").read_text()))

            try:
                # Every way of ending once, so that everything that is made once is there.
                await play(conversation, model, host.pid, turns=warm_up, seed=7)
                await reached(
                    lambda: now().children == now().files == 0 == model.open_connections,
                    "nothing left of the first turns",
                )
                before = await counted()
                ends = await play(conversation, model, host.pid, turns=turns, seed=20)
                assert set(ends) <= ENDS
                assert len(ends) == len(ENDS)
                assert sum(ends.values()) == turns

                def back() -> bool:
                    after = now()
                    same = (after.children, after.files, model.open_connections) == (0, 0, 0)
                    return same and after.descriptors <= before.descriptors and after.threads <= before.threads

                await reached(back, f"it is as before ({before}), it has {now()},")
                after = await counted()
            finally:
                await target.close()
                await host.stop()
    assert list((folder / "work").iterdir()) == []
    return before, after, ends
