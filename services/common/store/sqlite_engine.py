"""One SQLite file: one writer thread with group commit, a few reader threads (architecture, Stores).

What the writer takes from its queue becomes one transaction with one fsync, answered once it is durable. Other
processes may have the same file open; each transaction takes the write lock at its start.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from services.common.store.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable
from services.common.store.lane import Job, Jobs, Lane, LaneBounds, Server

T = TypeVar("T")

APPLICATION_ID: Final = 0x484D5331
"""Marks a file as one of ours (SQLite's application_id), so that nobody's other database is written to."""
LAYOUT_VERSION: Final = 1
"""Raised by a change older code cannot live with (SQLite's user_version)."""

BUSY_SECONDS: Final = 5.0
READERS: Final = 2
WRITES: Final = LaneBounds(jobs=4096, bytes=64 << 20, batch_jobs=256, batch_bytes=8 << 20, patience=5.0)
READS: Final = LaneBounds(jobs=4096, bytes=0, batch_jobs=32, batch_bytes=1, patience=5.0)

# 0: raised by the Python module itself.
_OWN_TROUBLE: Final = frozenset(
    {
        0,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_RANGE,
    }
)

Operation = Callable[[sqlite3.Connection], T]

_PRAGMAS: Final = (
    "PRAGMA synchronous = FULL",  # acknowledged means durable, also across a power cut
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA trusted_schema = OFF",
)


class SqliteEngine:
    """Runs operations on the file's connections. Several stores of one service share it, and so its commits."""

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        """Use `open`."""
        self.path = path
        self._writer = Lane(f"{path.name} writer", [_Writer(path, writer)], WRITES)
        self._readers = Lane(f"{path.name} reader", [_Reader(path) for _ in range(READERS)], READS)

    @classmethod
    async def open(cls, path: Path, prepare: Operation[None]) -> SqliteEngine:
        """Open or create the file (mode 0600) and run `prepare` on it in one transaction.

        Errors: `StoreRefused` with what to do about it, `StoreUnavailable` if another process keeps it locked.
        """
        return cls(path, await asyncio.to_thread(_open_and_prepare, path, prepare))

    async def write(self, operation: Operation[T], *, size: int = 0, atomic: bool = False) -> T:
        """Run `operation` in the next group; returns once it is durable.

        `size`: bytes it carries. An operation that changes something with more than one statement has to say `atomic`.
        What it raises is raised here and undoes it alone, unless SQLite itself is in trouble: then the whole group
        fails. It runs on the writer thread, may run in a group that fails, and must not end the transaction.
        Errors: `StoreUnavailable`, `StoreFull`.
        """
        return await self._writer.run(operation, size, atomic)

    async def read(self, operation: Operation[T]) -> T:
        """Run `operation` on a reading connection; each of its statements sees one consistent state.

        Errors: `StoreUnavailable`.
        """
        return await self._readers.run(operation)

    async def close(self) -> None:
        """Commit what was accepted, answer it, close the file. Idempotent."""
        await self._readers.close()
        await self._writer.close()


class _Writer(Server):
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = connection

    def serve(self, jobs: Jobs) -> None:
        try:
            if self._connection is None:
                self._connection = _connect(self._path)
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._apply(connection, job)
            self.on_disk = True
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - whatever it is, every caller of the group has to hear of it
            self._abandon(error)
            for job in jobs:
                job.result, job.error = None, store_failure(self._path, error)
        finally:
            self.on_disk = False

    def _apply(self, connection: sqlite3.Connection, job: Job[object]) -> None:
        """Run one operation of the group; an error of its own stays its own."""
        if job.atomic:
            connection.execute("SAVEPOINT operation")
        try:
            job.result = job.operation(connection)
        except Exception as error:
            if _is_engine_trouble(error) or not connection.in_transaction:
                raise
            if job.atomic:
                connection.execute("ROLLBACK TO operation")
            job.error = failure(self._path, error) if isinstance(error, sqlite3.Error) else error
        if job.atomic:
            connection.execute("RELEASE operation")

    def _abandon(self, error: BaseException) -> None:
        """Undo the group. I34: unless all is well with the connection, the next group starts on a fresh one."""
        connection = self._connection
        if connection is None or (_is_busy_or_full(error) and not connection.in_transaction):
            return
        self.finish()

    def finish(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


class _Reader(Server):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def serve(self, jobs: Jobs) -> None:
        for job in jobs:
            try:
                if self._connection is None:
                    self._connection = _connect(self._path)
                    self._connection.execute("PRAGMA query_only = ON")
                job.result = job.operation(self._connection)
            except sqlite3.Error as error:
                job.error = failure(self._path, error)
                if not _is_busy_or_full(error):
                    self.finish()
            except Exception as error:  # noqa: BLE001 - raised again where the caller awaits it
                job.error = error

    def finish(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


def failure(path: Path, error: sqlite3.Error) -> Exception:
    """What the caller of one operation hears of an error of SQLite: as it is, if it says something about the operation."""
    if isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError)):
        return error
    return store_failure(path, error)


def store_failure(path: Path, error: BaseException) -> StoreError:
    """The store's own trouble; a new error each time, as each caller raises its own."""
    if _primary_code(error) == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path.name}: no room left; free space on the disk that holds it")
    return StoreUnavailable(f"{path.name}: {type(error).__name__}: {error}")


def _primary_code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_busy_or_full(error: BaseException) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)


def _is_engine_trouble(error: Exception) -> bool:
    """True if SQLite failed, not the operation: a constraint, a bad value or a missing table is the operation's own."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) not in _OWN_TROUBLE


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to a file that exists: one that vanished is an error, not a new and empty store."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,  # opened by one thread, then handed to the writer for good
        cached_statements=256,
    )
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open_and_prepare(path: Path, prepare: Operation[None]) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreRefused(
            f"cannot open {path} for writing: {error.strerror}; give a file in a directory this user may write to"
        ) from error
    try:
        connection = _connect(path)
        try:
            _use_wal(path, connection)
            connection.execute("BEGIN IMMEDIATE")
            _claim(path, connection)
            prepare(connection)
            connection.execute("COMMIT")
            _sync_directory(path.parent)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise _refusal(path, error) from error
    return connection


def _use_wal(path: Path, connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite does not wait for others that do the same at this moment, so this does."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreRefused(f"{path}: its filesystem has no shared memory for SQLite's WAL; use a local disk")


def _claim(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreRefused(f"{path} is a database of another program; give a file of its own")
    if version > LAYOUT_VERSION:
        raise StoreRefused(
            f"{path} was written by a newer release (layout {version}, this one knows {LAYOUT_VERSION}); use that release"
        )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")


def _sync_directory(directory: Path) -> None:
    """Make the names of a new file and its log durable too."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refusal(path: Path, error: sqlite3.Error) -> StoreError:
    code = _primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return StoreRefused(f"{path} is not a SQLite database; give another file, or move this one away")
    if code == sqlite3.SQLITE_READONLY:
        return StoreRefused(f"{path} is read-only; make it and its directory writable for this user")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(f"{path} stayed locked by another process for {BUSY_SECONDS:g} s")
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path}: no room left; free space on the disk that holds it")
    return StoreRefused(f"{path} cannot be opened: {error}; check the file and its directory")
