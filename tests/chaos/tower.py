"""Sees from the stores, as they change, where every run stands, and catches one in a wanted moment by stopping who holds it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.plan import Moment
from tests.chaos.stored import OPEN, TERMINALS, StoredSegment, Stores

TRIES: Final = 12
"""Times that a run is stopped for a moment and has left it by then, before the wish is given up for what is there."""


@dataclass(slots=True)
class Sight:
    """What is known of a run that has not ended."""

    run_id: str
    document: dict[str, Any]
    events: int = 0
    last_kind: str = ""
    generation: int = 1
    open_calls: set[str] = field(default_factory=set[str])
    said_all: bool = False

    @property
    def holder(self) -> str:
        """The life of the process that executes it; empty: nobody."""
        return str(self.document.get("holder", ""))


@dataclass(frozen=True, slots=True)
class Caught:
    """A run in a moment, with everything that ran then. `frozen` are the processes stopped for it: whoever gets this lets them go."""

    run_id: str
    moment: Moment
    holder: str
    affected: dict[str, tuple[str, int]]
    """Every run that was executed: its holder, and how many events it had."""
    frozen: tuple[int, ...]
    at: float


@dataclass(slots=True)
class Recovery:
    """How long after a fault each affected run went on: until its next event, or its end. Seconds; bounded by the campaign's patience."""

    began: float
    waiting: dict[str, int]
    took: list[float] = field(default_factory=list[float])
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Wish:
    fits: Callable[[Sight], bool]
    moment: Moment
    freeze: Callable[[Sight], tuple[int, ...]]
    thaw: Callable[[tuple[int, ...]], None]
    until: float
    answer: Future[Caught | None]
    tries: int = TRIES


class Tower:
    """One thread that looks at the stores again and again. All that others ask of it goes through `catch` and `follow`."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._sights: dict[str, Sight] = {}
        self._untaken: dict[str, list[StoredSegment]] = {}
        self._wishes: list[_Wish] = []
        self._recoveries: list[Recovery] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tower", daemon=True)
        self.seals = 0
        self.failure: Exception | None = None

    @contextmanager
    def watching(self) -> Generator[Tower]:
        """Looks while the context lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    async def catch(
        self,
        moment: Moment,
        fits: Callable[[Sight], bool],
        freeze: Callable[[Sight], tuple[int, ...]],
        thaw: Callable[[tuple[int, ...]], None],
        seconds: float,
    ) -> Caught | None:
        """A run in this moment, its holder stopped there; None when there was none in time. What it says of the moment was read after the stop."""
        wish = _Wish(fits, moment, freeze, thaw, time.monotonic() + seconds, Future())
        with self._lock:
            self._wishes.append(wish)
        return await asyncio.wrap_future(wish.answer)

    def follow(self, affected: dict[str, int]) -> Recovery:
        """Measure from now on how long each of these runs, by events it had, takes to go on."""
        with self._lock:
            # A run that has not recovered from an earlier fault is that one's.
            known = {run_id for recovery in self._recoveries for run_id in recovery.waiting}
            recovery = Recovery(time.monotonic(), {run_id: n for run_id, n in affected.items() if run_id not in known})
            if not recovery.waiting:
                recovery.done.set()
            self._recoveries.append(recovery)
        return recovery

    @property
    def running(self) -> int:
        """Runs that are open now."""
        return len(self._sights)

    # The thread.

    def _watch(self) -> None:
        try:
            with self._stores.kept_open():
                while not self._stop.is_set():
                    self._look()
                    self._grant()
                    self._measure()
                    self._stop.wait(self._stores.look_seconds if self._wishes else 10 * self._stores.look_seconds)
        except Exception as error:  # noqa: BLE001 - raised again by `watching`; nobody may wait for a thread that is gone
            self.failure = error
        finally:
            with self._lock:
                for wish in self._wishes:
                    wish.answer.set_result(None)
                self._wishes.clear()
                for recovery in self._recoveries:
                    recovery.done.set()

    def _look(self) -> None:
        # The runs first: the segments of a run that is seen open are all read after it.
        documents = {document["run_id"]: document for document in self._stores.open_runs()}
        for run_id in [run_id for run_id in self._sights if run_id not in documents]:
            del self._sights[run_id]
        for run_id, document in documents.items():
            sight = self._sights.get(run_id)
            if sight is None:
                sight = self._sights[run_id] = Sight(run_id, document)
                for segment in self._untaken.pop(run_id, []):
                    _take(sight, segment)
            sight.document = document
        self._take_all(self._stores.new_segments(self._sights))
        if len(self._untaken) > 500:  # runs that were over before they were seen
            for run_id in list(self._untaken)[:250]:
                del self._untaken[run_id]

    def _look_at(self, run_id: str) -> None:
        """One run alone, quickly: its holder stands still meanwhile."""
        document = self._stores.run(run_id)
        if document is None or document["status"] not in OPEN:
            self._sights.pop(run_id, None)
            return
        self._sights[run_id].document = document
        self._take_all(self._stores.new_segments([run_id]))

    def _take_all(self, segments: Iterable[StoredSegment]) -> None:
        for segment in segments:
            self.seals += segment.is_seal
            sight = self._sights.get(segment.run_id)
            if sight is not None:
                _take(sight, segment)
            elif segment.index == 1 or segment.run_id in self._untaken:
                self._untaken.setdefault(segment.run_id, []).append(segment)

    def _grant(self) -> None:
        with self._lock:
            wishes = list(self._wishes)
        for wish in wishes:
            caught = self._caught(wish)
            if caught is not None or time.monotonic() > wish.until:
                with self._lock:
                    self._wishes.remove(wish)
                wish.answer.set_result(caught)

    def _caught(self, wish: _Wish) -> Caught | None:
        for sight in list(self._sights.values()):
            if not wish.fits(sight) or not self._is_in(sight, wish.moment):
                continue
            frozen = wish.freeze(sight)
            self._look_at(sight.run_id)
            now = self._sights.get(sight.run_id)
            wish.tries -= 1
            if now is not None and (self._is_in(now, wish.moment) or wish.tries <= 0):
                affected = {
                    each.run_id: (each.holder, each.events)
                    for each in self._sights.values()
                    if each.document["status"] == "running"
                }
                moment = wish.moment if self._is_in(now, wish.moment) else self._moment(now)
                return Caught(now.run_id, moment, now.holder, affected, frozen, time.monotonic())
            wish.thaw(frozen)
        return None

    def _is_in(self, sight: Sight, moment: Moment) -> bool:
        return moment is Moment.ANY or self._moment(sight) is moment

    def _moment(self, sight: Sight) -> Moment:
        if sight.document["status"] == "queued":
            return Moment.QUEUED
        if sight.last_kind in TERMINALS:
            binding = self._stores.binding(sight.document["binding_id"])
            active = (binding or {}).get("active") or {}
            return Moment.TERMINAL if active.get("run_id") == sight.run_id else Moment.RELEASE
        if sight.said_all:
            return Moment.INTERRUPT if self._has_paused(sight) else Moment.COMMIT
        if not sight.events:
            return Moment.INTERRUPT if sight.document.get("resumed_from") else Moment.SETUP
        return Moment.TOOL if sight.open_calls else Moment.STREAMING

    def _has_paused(self, sight: Sight) -> bool:
        """Whether what it asks a person is stored. What its runtime said before is all that the log has of it."""
        binding = self._stores.binding(sight.document["binding_id"])
        return ((binding or {}).get("interrupt") or {}).get("run_id") == sight.run_id

    def _measure(self) -> None:
        now = time.monotonic()
        with self._lock:
            for recovery in self._recoveries:
                for run_id, events in list(recovery.waiting.items()):
                    sight = self._sights.get(run_id)
                    if sight is None or sight.events > events:
                        recovery.took.append(now - recovery.began)
                        del recovery.waiting[run_id]
                if not recovery.waiting:
                    recovery.done.set()
            self._recoveries = [recovery for recovery in self._recoveries if not recovery.done.is_set()]


def is_executed(sight: Sight) -> bool:
    """Whether somebody holds it."""
    return bool(sight.holder) and sight.document["status"] in OPEN


def _take(sight: Sight, segment: StoredSegment) -> None:
    sight.generation = max(sight.generation, segment.run_generation)
    sight.events = segment.last_sequence
    for event in segment.events:
        sight.last_kind = event.kind
        if event.kind == "tool.started":
            sight.open_calls.add(str(event.sequence))
        elif event.kind == "tool.completed" and sight.open_calls:
            sight.open_calls.pop()
        sight.said_all = event.kind == "usage.updated"
