"""Which fault is injected at which moment of a run: decided by seed and number alone, so that every point can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")


class Moment(StrEnum):
    """Where a run stands, as the stores tell."""

    QUEUED = "queued"
    """It waits for its turn or for an executor."""
    SETUP = "set-up"
    """It is executed, and nothing of it is in the log."""
    STREAMING = "streaming"
    """Something of it is in the log, and more is to come."""
    TOOL = "tool"
    """A call of a tool is open."""
    INTERRUPT = "interrupt"
    """What it asks a person is stored and its terminal is not; or it is the answer, and nothing of that is in the log."""
    COMMIT = "commit"
    """All that its runtime said is in the log; the head is being committed, the terminal is not there."""
    TERMINAL = "terminal"
    """The terminal is in the log, the slot is still its own."""
    RELEASE = "release"
    """The slot was given back, the run's status does not say so yet."""
    ANY = "any"
    """Whatever runs, wherever it stands."""


class Kind(StrEnum):
    """What is done to the mesh."""

    KILL = "kill"
    STOP = "stop"
    TERM = "term"
    CUT = "cut"
    FLUSH = "flush"
    PAUSE = "pause"
    LOCK = "lock"
    FULL = "full"


MOMENTS: Final = {
    Moment.QUEUED: 8, Moment.SETUP: 12, Moment.STREAMING: 20, Moment.TOOL: 12, Moment.INTERRUPT: 6, Moment.COMMIT: 12,
    Moment.TERMINAL: 10, Moment.RELEASE: 8, Moment.ANY: 12,
}  # fmt: skip
"""Weights."""

KINDS: Final = {
    Kind.KILL: 34, Kind.STOP: 20, Kind.TERM: 10, Kind.CUT: 14, Kind.FLUSH: 5, Kind.PAUSE: 5, Kind.LOCK: 7, Kind.FULL: 5,
}  # fmt: skip
"""Weights."""

TARGETS: Final = {
    Kind.KILL: {"runs": 40, "sessions": 14, "catalog": 6, "gateway": 12, "adapter": 9, "sandbox": 3, "bus": 8, "store": 8},
    Kind.STOP: {"runs": 44, "sessions": 16, "catalog": 6, "gateway": 10, "adapter": 8, "sandbox": 2, "bus": 6, "store": 8},
    Kind.TERM: {"runs": 55, "sessions": 15, "catalog": 8, "gateway": 14, "adapter": 8},
    Kind.CUT: {"runs": 45, "sessions": 15, "gateway": 20, "catalog": 8, "adapter": 12},
    Kind.FLUSH: {"bus": 1},
    Kind.PAUSE: {"bus": 1},
    Kind.LOCK: {"runs": 1, "sessions": 1},
    Kind.FULL: {"disk": 1},
}  # fmt: skip
"""Whom a fault meets, by weight. `runs` is the replica that holds the run in question; of the others the dice take one."""

PAIRS: Final = 0.15
"""Share of the points at which two faults come within one lease."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `length` is a share, 0 to 1, of how long its kind may take; `dice` decides what is left."""

    kind: Kind
    target: str
    length: float
    dice: int

    @property
    def name(self) -> str:
        """As it stands in reports."""
        return f"{self.kind.value} {self.target}"


@dataclass(frozen=True, slots=True)
class Point:
    """One point: a fault at a moment, and perhaps a second one, at once or as soon as the first has led to a takeover."""

    number: int
    moment: Moment
    first: Fault
    second: Fault | None
    at_takeover: bool

    @property
    def name(self) -> str:
        """As it stands in reports."""
        return "pair" if self.second is not None else self.first.name

    def __str__(self) -> str:
        second = ""
        if self.second is not None:
            second = f" and {self.second.name} {'at the takeover' if self.at_takeover else 'at once'}"
        return f"point {self.number}: {self.first.name}{second} at {self.moment.value}"


@dataclass(frozen=True, slots=True)
class Possible:
    """What can be done to this mesh, here: faults whose means are missing are none of its points."""

    kinds: frozenset[Kind]
    store_process: bool
    """Whether the store is a process of its own."""

    def targets(self, kind: Kind) -> dict[str, int]:
        """Whom a fault of this kind may meet."""
        return {name: weight for name, weight in TARGETS[kind].items() if name != "store" or self.store_process}


def point(seed: int, number: int, possible: Possible) -> Point:
    """The point with this number; the same for the same seed and means."""
    dice = random.Random(f"{seed}:{number}")
    moment = _one_of(dice, MOMENTS)
    first = _fault(dice, possible)
    second = _fault(dice, possible) if dice.random() < PAIRS else None
    return Point(number, moment, first, second, at_takeover=dice.random() < 0.5)


def _fault(dice: random.Random, possible: Possible) -> Fault:
    kind = _one_of(dice, {kind: n for kind, n in KINDS.items() if kind in possible.kinds})
    return Fault(kind, _one_of(dice, possible.targets(kind)), dice.random(), dice.getrandbits(32))


def _one_of(dice: random.Random, weights: dict[T, int]) -> T:
    return dice.choices(list(weights), list(weights.values()))[0]
