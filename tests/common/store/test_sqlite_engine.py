"""The SQLite engine: groups, their failures, other users of the file, and what it refuses to open."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.store import StoreFull, StoreRefused, StoreUnavailable, sqlite_engine
from services.common.store.sqlite_engine import APPLICATION_ID, LAYOUT_VERSION, SqliteEngine


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, body BLOB)")


def put(word: str, body: bytes = b""):
    return lambda connection: connection.execute("INSERT INTO words VALUES (?, ?)", (word, body)).rowcount


def words(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT word FROM words ORDER BY word")]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = await SqliteEngine.open(tmp_path / "engine.db", make_table)
    yield engine
    await engine.close()


async def in_one_group(engine: SqliteEngine, *operations, atomic: bool = False) -> list[object]:
    """Hold the writer until all are queued behind it, so that they are one group."""
    entered, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(_: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(entered.set)
        go.wait()

    holding = asyncio.ensure_future(engine.write(hold))
    await entered.wait()
    writes = [asyncio.ensure_future(engine.write(operation, atomic=atomic)) for operation in operations]
    await asyncio.sleep(0)
    go.set()
    await holding
    return await asyncio.gather(*writes, return_exceptions=True)


async def test_queued_writes_share_a_transaction(engine: SqliteEngine) -> None:
    other = sqlite3.connect(engine.path, check_same_thread=False)
    results = await in_one_group(engine, put("a"), lambda _: words(other), put("b"))
    assert results == [1, [], 1]
    assert words(other) == ["a", "b"]
    other.close()


async def test_a_constraint_fails_its_own_operation_only(engine: SqliteEngine) -> None:
    results = await in_one_group(engine, put("a"), put("a"), put("b"))
    assert (results[0], results[2]) == (1, 1)
    assert isinstance(results[1], sqlite3.IntegrityError)
    assert await engine.read(words) == ["a", "b"]


async def test_an_operation_that_raises_is_undone_alone(engine: SqliteEngine) -> None:
    def half(connection: sqlite3.Connection) -> None:
        put("half")(connection)
        raise LookupError("second half")

    def wrong(connection: sqlite3.Connection) -> None:
        put("wrong")(connection)
        connection.execute("SELECT * FROM nowhere")

    results = await in_one_group(engine, put("a"), half, wrong, put("b"), atomic=True)
    assert [type(result) for result in results] == [int, LookupError, StoreUnavailable, int]
    assert await engine.read(words) == ["a", "b"]


async def test_i34_a_full_disk_fails_the_whole_group_and_passes(engine: SqliteEngine) -> None:
    await engine.write(put("before"))
    (pages,) = await engine.read(lambda connection: connection.execute("PRAGMA page_count").fetchone())
    await engine.write(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone())
    results = await in_one_group(engine, put("small"), put("large", bytes(100_000)), put("late"))
    assert [type(result) for result in results] == [StoreFull] * 3
    assert await engine.read(words) == ["before"]
    assert await engine.write(put("fits")) == 1
    await engine.write(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    assert await engine.write(put("large", bytes(100_000))) == 1
    assert await engine.read(words) == ["before", "fits", "large"]


_COMMITS_FAIL = """
import asyncio, json, resource, sys
from pathlib import Path
from services.common.store import StoreError
from services.common.store.sqlite_engine import SqliteEngine
from tests.common.store.test_sqlite_engine import in_one_group, make_table, put, words

async def main():
    path = Path(sys.argv[1])
    engine = await SqliteEngine.open(path, make_table)
    await engine.write(put("before", bytes(100_000)))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name(path.name + "-wal").stat().st_size
    # The log cannot grow: statements succeed in memory, the commit fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    failed = [type(r).__name__ for r in await in_one_group(engine, put("a"), put("b"), put("c"))]
    seen = await engine.read(words)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await engine.write(put("after"))
    after = await engine.read(words)
    await engine.close()
    print(json.dumps([failed, seen, after]))

asyncio.run(main())
"""


def test_i34_a_failed_commit_fails_its_group_and_the_engine_goes_on(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _COMMITS_FAIL, str(tmp_path / "engine.db")],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.returncode == 0, child.stderr.decode()
    failed, seen, after = json.loads(child.stdout)
    assert set(failed) <= {"StoreUnavailable", "StoreFull"}
    assert len(failed) == 3
    assert seen == ["before"]
    assert after == ["after", "before"]


async def test_i34_a_locked_file_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.05)
    engine = await SqliteEngine.open(tmp_path / "engine.db", make_table)
    other = sqlite3.connect(engine.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked") as caught:
        await engine.write(put("a"))
    assert caught.value.retryable
    assert await engine.read(words) == []
    with pytest.raises(StoreUnavailable, match="locked"):
        await SqliteEngine.open(tmp_path / "engine.db", make_table)
    other.execute("ROLLBACK")
    other.close()
    assert await engine.write(put("a")) == 1
    await engine.close()


async def test_i34_a_broken_connection_is_replaced(engine: SqliteEngine) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        connection.close()

    results = await in_one_group(engine, put("a"), breaks, put("b"))
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert await engine.write(put("c")) == 1
    for _ in range(4):
        with pytest.raises(sqlite3.ProgrammingError):
            await engine.read(lambda connection: breaks(connection) or words(connection))
        assert await engine.read(words) == ["c"]


async def test_i34_an_operation_that_ends_its_thread_leaves_nobody_waiting(engine: SqliteEngine) -> None:
    results = await in_one_group(engine, put("a"), lambda _: sys.exit("enough"), put("b"))
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    with pytest.raises(StoreUnavailable, match="enough"):
        await engine.read(lambda _: sys.exit("enough"))
    assert await engine.write(put("c")) == 1
    assert await engine.read(words) == ["c"]


async def test_i34_a_file_that_vanished_is_not_made_anew(engine: SqliteEngine) -> None:
    await engine.write(put("a"))
    reader = engine._readers._workers[0].server
    moved = engine.path.rename(engine.path.with_name("moved.db"))
    reader.finish()
    engine._readers._workers[1].server.finish()
    with pytest.raises(StoreUnavailable):
        await engine.read(words)
    assert not engine.path.exists()
    moved.rename(engine.path)
    assert await engine.read(words) == ["a"]


async def test_writes_of_two_engines_on_one_file_all_arrive(tmp_path: Path) -> None:
    engines = [await SqliteEngine.open(tmp_path / "engine.db", make_table) for _ in range(2)]
    await asyncio.gather(
        *(
            engine.write(put(f"{name}{number:02}"))
            for name, engine in zip("ab", engines, strict=True)
            for number in range(50)
        )
    )
    assert len(await engines[0].read(words)) == 100
    for engine in engines:
        await engine.close()


async def test_nobody_else_writes_between_the_reads_and_writes_of_a_group(engine: SqliteEngine) -> None:
    other = sqlite3.connect(engine.path, check_same_thread=False, isolation_level=None, timeout=0)

    def read_then_write(connection: sqlite3.Connection) -> list[str]:
        before = words(connection)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            put("other")(other)
        put("mine")(connection)
        return before

    assert await engine.write(read_then_write, atomic=True) == []
    assert await engine.read(words) == ["mine"]
    other.close()


async def test_many_engines_can_open_a_new_file_at_once(tmp_path: Path) -> None:
    engines = await asyncio.gather(*(SqliteEngine.open(tmp_path / "engine.db", make_table) for _ in range(6)))
    for number, engine in enumerate(engines):
        await engine.write(put(str(number)))
        await engine.close()


async def test_the_file_is_private_and_durable(engine: SqliteEngine) -> None:
    for path in engine.path.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path

    def settings(connection: sqlite3.Connection) -> list[object]:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert await engine.write(settings) == ["wal", 2]


async def test_i32_what_is_not_our_database_is_refused(tmp_path: Path) -> None:
    async def refusal(path: Path) -> str:
        with pytest.raises(StoreRefused) as caught:
            await SqliteEngine.open(path, make_table)
        assert str(path) in str(caught.value)
        return str(caught.value)

    text = tmp_path / "text.db"
    text.write_bytes(b"no database at all " * 1000)
    assert "is not a SQLite database" in await refusal(text)
    assert text.read_bytes() == b"no database at all " * 1000

    assert "cannot open" in await refusal(tmp_path / "missing" / "records.db")
    assert "cannot open" in await refusal(tmp_path)

    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE mine (a)")
    foreign.close()
    assert "another program" in await refusal(tmp_path / "foreign.db")

    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    newer.execute(f"PRAGMA user_version = {LAYOUT_VERSION + 1}")
    newer.close()
    assert "newer release" in await refusal(tmp_path / "newer.db")


_OPEN_UNPRIVILEGED = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from services.common.store.sqlite_engine import SqliteEngine
if os.geteuid() == 0:
    os.setegid(65534); os.seteuid(65534)
try:
    asyncio.run(SqliteEngine.open(Path(sys.argv[1]), lambda connection: None))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("read_only", ["file", "directory"])
def test_i32_a_file_that_cannot_be_written_is_refused(read_only: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own directories are closed to other users
        path = Path(place) / "records.db"
        asyncio.run(_make(path))
        path.chmod(0o444 if read_only == "file" else 0o666)
        path.parent.chmod(0o777 if read_only == "file" else 0o555)
        child = subprocess.run(
            [sys.executable, "-c", _OPEN_UNPRIVILEGED, str(path)],
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        path.parent.chmod(0o700)
    assert child.stdout.decode().startswith("StoreRefused"), child.stdout + child.stderr
    assert str(path) in child.stdout.decode()


async def _make(path: Path) -> None:
    engine = await SqliteEngine.open(path, make_table)
    await engine.close()


async def test_a_loop_that_never_idles_does_not_starve_the_store(engine: SqliteEngine) -> None:
    busy = True

    async def burn() -> None:
        while busy:
            sum(range(3000))
            await asyncio.sleep(0)

    burning = asyncio.ensure_future(burn())
    for number in range(100):
        await engine.write(put(f"{number:03}"))
        await engine.read(words)
    busy = False
    await burning
