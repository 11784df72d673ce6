"""The event log contract, kept by SQLite beside the records of the same service."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.common.store import Collection, open_record_store
from services.runs.log import Appended, SegmentLog, open_segment_log
from tests.runs.log.contract import OpenLog, SegmentLogContract, header

RUNS = Collection("runs")


class TestSqliteSegmentLog(SegmentLogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        async def open_() -> tuple[SegmentLog, Callable[[], Awaitable[None]]]:
            store = await open_record_store(f"sqlite://{tmp_path}/runs.db", [RUNS])
            return await open_segment_log(store), store.close

        return open_


async def test_records_and_log_share_the_file(tmp_path: Path) -> None:
    store = await open_record_store(f"sqlite://{tmp_path}/runs.db", [RUNS])
    log = await open_segment_log(store)
    again = await open_segment_log(store)
    await asyncio.gather(store.insert(RUNS, "r", {}), log.append(header(1, 1, 1), b"e"))
    assert await again.tail("r") == header(1, 1, 1)
    await store.close()
    assert os.listdir(tmp_path) == ["runs.db"]


def append_until_killed(url: str, lines: int) -> dict[str, int]:
    """Kill the appender once it has acknowledged so many segments; the last acknowledged index of each run."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.log.crashing_appender", url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))},
    )
    assert child.stdout is not None
    acknowledged: dict[str, int] = {}
    for number, line in enumerate(child.stdout):
        if number == lines:
            child.kill()
        if line.endswith(b"\n"):
            run_id, index = line.decode().split()
            acknowledged[run_id] = int(index)
    child.stdout.close()
    assert child.wait() == -9
    return acknowledged


@pytest.mark.parametrize("seed", range(3))
async def test_i8_what_was_appended_survives_sigkill(tmp_path: Path, seed: int) -> None:
    url = f"sqlite://{tmp_path}/runs.db"
    acknowledged = append_until_killed(url, random.Random(seed).randrange(1, 1500))
    store = await open_record_store(url, [RUNS])
    log = await open_segment_log(store)
    for run_id, index in acknowledged.items():
        segments = await log.read(run_id, 0)
        tail = await log.tail(run_id)
        assert tail is not None
        assert tail.index >= index
        assert [segment.header.index for segment in segments] == list(range(1, tail.index + 1))
        for segment in segments:
            assert segment.events == f"{run_id}/{segment.header.index}".encode() * 50
        following = header(tail.index + 1, tail.last_sequence + 1, tail.last_sequence + 1, run_id)
        assert await log.append(following, b"e") == Appended()
    await store.close()
