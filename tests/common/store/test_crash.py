"""SIGKILL at any instruction loses nothing that was acknowledged (I33)."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.store import open_record_store
from tests.common.store.crashing_writer import BY_COUNT, COUNTERS


def write_until_killed(url: str, lines: int) -> dict[str, int]:
    """Kill the writer once it has acknowledged so many writes; the highest acknowledged revision of each key."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.common.store.crashing_writer", url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))},
    )
    assert child.stdout is not None
    acknowledged: dict[str, int] = {}
    for number, line in enumerate(child.stdout):
        if number == lines:
            child.kill()
        if line.endswith(b"\n"):
            key, rev = line.split()
            acknowledged[key.decode()] = int(rev)
    child.stdout.close()
    assert child.wait() == -9
    return acknowledged


@pytest.mark.parametrize("seed", range(4))
async def test_i33_a_killed_process_has_every_acknowledged_record(tmp_path: Path, seed: int) -> None:
    url = f"sqlite://{tmp_path}/records.db"
    acknowledged = write_until_killed(url, random.Random(seed).randrange(1, 1500))
    store = await open_record_store(url, [COUNTERS])
    for key, rev in acknowledged.items():
        record = await store.get(COUNTERS, key)
        assert record is not None, f"{key} was acknowledged and is gone"
        assert record.rev >= rev
        assert record.document["counted"] == record.rev
        found = await store.find(COUNTERS, BY_COUNT, (record.document["lane"], record.document["count"]))
        assert found == record
        assert await store.get_blob(COUNTERS, key) == key.encode() * 100
        assert await store.compare_and_set(COUNTERS, key, record.rev, {**record.document, "counted": record.rev + 1})
    await store.close()
    connection = sqlite3.connect(tmp_path / "records.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    # No half of an operation either.
    assert connection.execute(
        "SELECT COUNT(*) FROM records_counters LEFT JOIN blobs_counters USING (id) WHERE blob IS NULL"
    ).fetchone() == (0,)
    connection.close()
