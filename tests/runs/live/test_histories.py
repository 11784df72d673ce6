"""Random histories of a run: whatever is appended and however notices are lost, doubled, reordered or late, every watcher sees 1..n (I7, I8)."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from services.runs.bus import Bus, NoBus, Notice
from services.runs.live import LiveHub
from services.runs.live.recent import RecentMemory
from services.runs.segment import Segment
from tests.runs.live.runlog import RunLog, open_log, settled, watched

APPENDS = st.lists(st.integers(0, 6), min_size=1, max_size=25)
"""Events of each segment; 0 is a seal."""


class BadNotices:
    """Delivers what was published at its own time, or not at all, or twice, with or without the events, or with a lie about the end."""

    def __init__(self, hub: LiveHub, choices: random.Random) -> None:
        self._hub = hub
        self._random = choices
        self._late: list[Notice] = []

    def published(self, segment: Segment) -> None:
        if segment.is_seal:
            return
        chance = self._random.random()
        notice = Notice(segment.run_id, segment.last_sequence, segment if chance < 0.6 else None)
        if chance < 0.15:
            return
        if chance < 0.35:
            self._late.append(notice)
            return
        self._hub.noticed(notice)
        if chance > 0.8:
            self._hub.noticed(notice)
        if chance > 0.95:
            self._hub.noticed(Notice(segment.run_id, segment.last_sequence + 1000, None))
        if self._late and self._random.random() < 0.5:
            self._hub.noticed(self._late.pop(self._random.randrange(len(self._late))))


async def play(appends: list[int], seed: int, memory: RecentMemory, bus: Bus) -> None:
    choices = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        async with open_log(Path(folder)) as log:
            hub = LiveHub(log, bus, executes_here=lambda _: False, memory=memory, poll_seconds=3600)
            run, notices = RunLog(log), BadNotices(hub, choices)
            watchers: list[tuple[int, asyncio.Task[list[bytes]]]] = []

            def watch() -> None:
                after = choices.randrange(run.last_sequence + 4)
                watchers.append((after, asyncio.create_task(watched(hub, after))))

            watch()
            for count in appends:
                notices.published(await (run.append(count) if count else run.seal()))
                if choices.random() < 0.4:
                    watch()
                if choices.random() < 0.2:
                    # A watcher that leaves in the middle disturbs nobody.
                    leaving = choices.choice(watchers)
                    leaving[1].cancel()
                    watchers.remove(leaving)
                    watch()
                for _ in range(choices.randrange(4)):
                    await asyncio.sleep(0)
            notices.published(await run.append(1, terminal=True))
            # The last notice may be the lost one: then the poll finds the end.
            waiting = asyncio.gather(*(task for _, task in watchers))
            while not waiting.done():
                await hub.poll_once()
                await asyncio.sleep(0)
            for (after, _), seen in zip(watchers, await waiting, strict=True):
                assert seen == run.events[after:]  # I7, I8
            await settled(lambda: hub.followed == 0)
            assert memory.size == 0
            await hub.stop()


@given(appends=APPENDS, seed=st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_i7_every_watcher_sees_one_to_n_whatever_becomes_of_notices(appends: list[int], seed: int) -> None:
    asyncio.run(play(appends, seed, RecentMemory(), NoBus()))


@given(appends=APPENDS, seed=st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_i7_also_when_hardly_anything_is_kept(appends: list[int], seed: int) -> None:
    asyncio.run(play(appends, seed, RecentMemory(run_bytes=600, total_bytes=600), NoBus()))
