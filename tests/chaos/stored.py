"""The stores of a mesh as they are, read beside its processes, also while those are dead or stopped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from harness.run.v1 import run_service_pb2

OPEN: Final = ("queued", "running")
TERMINALS: Final = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")
_COLUMNS: Final = "run_id, number, first_sequence, last_sequence, run_generation, state, events"


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as the log has it. `at` is when it was made, nanoseconds; `packed` its bytes."""

    sequence: int
    kind: str
    at: int
    revision: int
    """Of the head that a `run.completed` says it committed; else 0."""
    packed: bytes


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as the log has it."""

    run_id: str
    index: int
    first_sequence: int
    last_sequence: int
    run_generation: int
    state: dict[str, Any]
    events: tuple[LoggedEvent, ...]

    @property
    def is_seal(self) -> bool:
        """Whether it ends an older generation and carries no event."""
        return self.first_sequence > self.last_sequence


class Stores(Protocol):
    """What can be read of a mesh's stores. `look_seconds`: between two looks of one who waits for something to change, so that looking costs little."""

    look_seconds: float

    def documents(self, service: str, collection: str) -> list[dict[str, Any]]:
        """Every document of a collection."""
        ...

    def open_runs(self) -> list[dict[str, Any]]:
        """The runs whose status is open."""
        ...

    def run(self, run_id: str) -> dict[str, Any] | None:
        """One run, as it is."""
        ...

    def binding(self, binding_id: str) -> dict[str, Any] | None:
        """The open epoch with this binding id."""
        ...

    def segments(self, run_id: str) -> list[StoredSegment]:
        """A run's log in order."""
        ...

    def all_segments(self) -> Iterable[StoredSegment]:
        """The whole log, run by run, in order."""
        ...

    def new_segments(self, runs: Iterable[str]) -> list[StoredSegment]:
        """What was appended to the log since this was asked last, of these runs at least."""
        ...

    def kept_open(self) -> AbstractContextManager[None]:
        """For one thread that asks again and again: what it asks within takes as little as possible."""
        ...


class StoredMesh:
    """What the judge and the tests ask of the stores."""

    def __init__(self, stores: Stores | Path) -> None:
        """`stores` may be the data folder of a mesh with embedded stores."""
        self._stores: Stores = SqliteStores(stores / "store") if isinstance(stores, Path) else stores

    def runs(self) -> list[dict[str, Any]]:
        """All runs; tombstones are left out."""
        return [run for run in self._stores.documents("runs", "runs") if run["status"] != "tombstone"]

    def bindings(self) -> list[dict[str, Any]]:
        """The bindings of all conversations as they are now."""
        return self._stores.documents("sessions", "bindings")

    def archived(self) -> list[dict[str, Any]]:
        """The closed epochs."""
        return self._stores.documents("sessions", "archived_bindings")

    def versions(self) -> list[dict[str, Any]]:
        """All versions of all agents."""
        return self._stores.documents("catalog", "agent_versions")

    def agents(self) -> list[dict[str, Any]]:
        """All agents."""
        return self._stores.documents("catalog", "agents")

    def segments(self, run_id: str) -> list[StoredSegment]:
        """A run's log, in order."""
        return self._stores.segments(run_id)

    def logs(self) -> dict[str, list[StoredSegment]]:
        """All logs."""
        logs: dict[str, list[StoredSegment]] = {}
        for segment in self._stores.all_segments():
            logs.setdefault(segment.run_id, []).append(segment)
        return logs

    def log(self, run_id: str) -> list[LoggedEvent]:
        """A run's events in the order of the log."""
        return events_of(self.segments(run_id))

    def unsettled(self) -> list[str]:
        """What has not come to its end: runs that are open, bindings that are held, awaited or closing."""
        left = [f"{run['run_id']} {run['status']}" for run in self._stores.open_runs()]
        for binding in self.bindings():
            if binding["active"] or binding["waiting"] or binding["status"] != "active":
                held = (binding["active"] or {}).get("run_id", "")
                left.append(f"{binding['conversation_id']} {binding['status']} {held} +{len(binding['waiting'])}")
        return left


def events_of(segments: Iterable[StoredSegment]) -> list[LoggedEvent]:
    """The events of segments."""
    return [event for segment in segments for event in segment.events]


def unpacked(packed: bytes) -> tuple[LoggedEvent, ...]:
    """The events in a segment's bytes."""
    events: list[LoggedEvent] = []
    for event in run_service_pb2.WatchRunResponse.FromString(packed).events:
        kind = (event.payload.WhichOneof("kind") or "").replace("_", ".", 1)
        revision = event.payload.run_completed.thread_state.durable_revision
        packed_event = event.SerializeToString(deterministic=True)
        events.append(LoggedEvent(event.sequence, kind, event.time.ToNanoseconds(), revision, packed_event))
    return tuple(events)


class SqliteStores:
    """The embedded stores. Every read opens its own connections, but for those `kept_open`."""

    look_seconds = 0.002

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, sqlite3.Connection] | None = None
        self._position = 0

    @contextmanager
    def kept_open(self) -> Generator[None]:
        """Reads within come from connections that stay open; of one thread only."""
        self._kept = {}
        try:
            yield
        finally:
            for connection in self._kept.values():
                connection.close()
            self._kept = None

    def documents(self, service: str, collection: str) -> list[dict[str, Any]]:
        """See `Stores.documents`."""
        return self._documents(service, f'SELECT document FROM "records_{collection}"', ())

    def open_runs(self) -> list[dict[str, Any]]:
        """See `Stores.open_runs`."""
        return self._documents("runs", 'SELECT document FROM "records_runs" WHERE f_status IN (?, ?)', OPEN)

    def run(self, run_id: str) -> dict[str, Any] | None:
        """See `Stores.run`."""
        found = self._documents("runs", 'SELECT document FROM "records_runs" WHERE key = ?', (run_id,))
        return found[0] if found else None

    def binding(self, binding_id: str) -> dict[str, Any] | None:
        """See `Stores.binding`."""
        statement = 'SELECT document FROM "records_bindings" WHERE f_binding_id = ?'
        found = self._documents("sessions", statement, (binding_id,))
        return found[0] if found else None

    def segments(self, run_id: str) -> list[StoredSegment]:
        """See `Stores.segments`."""
        return self._segments(f"SELECT {_COLUMNS} FROM segments WHERE run_id = ? ORDER BY number", (run_id,))

    def all_segments(self) -> list[StoredSegment]:
        """See `Stores.all_segments`."""
        return self._segments(f"SELECT {_COLUMNS} FROM segments ORDER BY run_id, number", ())

    def new_segments(self, runs: Iterable[str]) -> list[StoredSegment]:
        """See `Stores.new_segments`. One writer at a time: positions rise in the order of the commits."""
        statement = f"SELECT id, {_COLUMNS} FROM segments WHERE id > ? ORDER BY id"
        with self._open("runs") as connection:
            rows = connection.execute(statement, (self._position,)).fetchall()
        if rows:
            self._position = rows[-1][0]
        return [segment_of(*row[1:]) for row in rows]

    def _documents(self, service: str, statement: str, values: tuple[str, ...]) -> list[dict[str, Any]]:
        with self._open(service) as connection:
            return [json.loads(row[0]) for row in connection.execute(statement, values)]

    def _segments(self, statement: str, values: tuple[str | int, ...]) -> list[StoredSegment]:
        with self._open("runs") as connection:
            rows = connection.execute(statement, values).fetchall()
        return [segment_of(*row) for row in rows]

    @contextmanager
    def _open(self, service: str) -> Generator[sqlite3.Connection]:
        if self._kept is None:
            with closing(self._connect(service)) as connection:
                yield connection
            return
        if service not in self._kept:
            self._kept[service] = self._connect(service)
        yield self._kept[service]

    def _connect(self, service: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._folder / f"{service}.sqlite3", timeout=30)
        connection.execute("PRAGMA query_only = 1")
        return connection


def segment_of(
    run_id: str, index: int, first: int, last: int, generation: int, state: bytes | str, packed: bytes
) -> StoredSegment:
    """A segment out of what the log keeps of it."""
    return StoredSegment(run_id, index, first, last, generation, json.loads(state), unpacked(packed))
