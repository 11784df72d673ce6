"""Who may be executed here, and in which order those who may not yet wait (I23, I35).

Three bounds: executions of this process; of one profile in this process (`limits.max_concurrent_runs` of the operator file); and of one
harness, which leaves a part of the process's places to others however many of its runs there are or hang. Who waits is served in turn:
harness by harness, of a harness profile by profile, of a profile owner by owner, of an owner first come, first served. Conversations need no
turn of their own, since only one run of each can be waiting here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

UNBOUNDED: Final = 0
"""Limit of a profile that has none but the process's own."""
TIMES_FREE: Final = 8
"""A harness may have one more place while it has fewer than so many times those that are free: alone it gets about eight ninths of them, the
next one eight ninths of the rest. A process of fewer than ten places has none to leave."""

ProfileKey = tuple[str, str]
"""Harness and profile."""
Path = tuple[str, ...]
Allowed = Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class Share:
    """What a profile may have of this process: at most `limit` executions at once, `UNBOUNDED` for as many as there is room for."""

    key: ProfileKey
    limit: int


class Turns:
    """Names that wait under paths of the same length, served in turn at every step of the path."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, Turns] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, path: Sequence[str]) -> None:
        """The last step of the path waits behind those that are there."""
        first, *rest = path
        step = self._steps.setdefault(first, Turns())
        if rest:
            step.add(rest)

    def remove(self, path: Sequence[str]) -> None:
        """It waits no more."""
        first, *rest = path
        step = self._steps.get(first)
        if step is None:
            return
        if rest:
            step.remove(rest)
        if not step:
            del self._steps[first]

    def next(self, allowed: Allowed, before: Path = ()) -> Path | None:
        """The path whose turn it is, taken out; None if none is allowed. `allowed` is asked for each step with the path to it."""
        for name, step in self._steps.items():
            here = (*before, name)
            if not allowed(here):
                continue
            found = step.next(allowed, here) if step else here
            if found is not None:
                self._steps.move_to_end(name)  # I23: whoever was served goes behind all others
                if not step:
                    del self._steps[name]
                return found
        return None


class Places:
    """The executions of one process and the lines before them. `most` bounds the first; `most_waiting` the line of each profile.

    Whoever must be executed at once (takeovers, forced ends) is counted and never waits, so counts may pass their bounds.
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most = most
        self._most_waiting = most_waiting
        self._taken = 0
        self._of_harness: Counter[str] = Counter()
        self._of_profile: Counter[ProfileKey] = Counter()
        self._turns = Turns()
        self._waiting: dict[str, tuple[Path, float]] = {}
        self._lines: Counter[ProfileKey] = Counter()
        self._limits: dict[ProfileKey, int] = {}

    @property
    def taken(self) -> int:
        """Places that are taken, by executions or for them."""
        return self._taken

    @property
    def room(self) -> int:
        """How many more runs may be executed, as far as harness and profile allow."""
        return max(0, self._most - self._taken)

    def may_have(self, share: Share) -> bool:
        """Whether a run of the profile that comes now may be executed: those who wait come before it."""
        if self._lines[share.key]:
            self._limits[share.key] = share.limit  # the operator may have changed it since they came
            return False
        return self.room > 0 and self._leaves_room(share.key[0]) and self._within(share.key, share.limit)

    def is_full_for(self, share: Share) -> bool:
        """Whether one more run would have to wait and the profile's line has no place for it. Each has a line of its own, so that one cannot
        fill those of others (I23).
        """
        return not self.may_have(share) and self._lines[share.key] >= self._most_waiting

    def take(self, key: ProfileKey) -> None:
        """Take a place for a run of the profile, whether there is one or not."""
        self._taken += 1
        self._of_harness[key[0]] += 1
        self._of_profile[key] += 1

    def give(self, key: ProfileKey) -> None:
        """Give a place of the profile back."""
        self._taken -= 1
        self._of_harness[key[0]] -= 1
        self._of_profile[key] -= 1

    def waits(self, run_id: str) -> bool:
        """Whether the run is in a line."""
        return run_id in self._waiting

    def has_line_for(self, key: ProfileKey) -> bool:
        """Whether a run of the profile may still enter its line. One that is stored already may, beyond the bound for starts."""
        return self._lines[key] < self._most_waiting + self._most

    def enter(self, run_id: str, share: Share, owner: str, now: float) -> bool:
        """Put a run into its line; False if it is in it already, or if that is as long as it may be (I35)."""
        if run_id in self._waiting or not self.has_line_for(share.key):
            return False
        path = (*share.key, owner, run_id)
        self._turns.add(path)
        self._waiting[run_id] = (path, now)
        self._lines[share.key] += 1
        self._limits[share.key] = share.limit
        return True

    def next(self) -> tuple[str, ProfileKey] | None:
        """Take whose turn it is out of the lines, and a place for it; None if nobody waits who may be executed."""
        if not self.room:
            return None
        path = self._turns.next(self._allows)
        if path is None:
            return None
        key = (path[0], path[1])
        self._left(path[-1], key)
        self.take(key)
        return path[-1], key

    def waiting_since(self, then: float) -> set[str]:
        """Those who wait from before that time on."""
        return {run_id for run_id, (_, since) in self._waiting.items() if since < then}

    def leave(self, run_id: str) -> bool:
        """The run waits no more; whether it did."""
        entered = self._waiting.get(run_id)
        if entered is None:
            return False
        path = entered[0]
        self._turns.remove(path)
        self._left(run_id, (path[0], path[1]))
        return True

    def forget_lines(self) -> None:
        """Nobody waits any more."""
        self._turns = Turns()
        self._waiting.clear()
        self._lines.clear()
        self._limits.clear()

    def _allows(self, path: Path) -> bool:
        if len(path) == 1:
            return self._leaves_room(path[0])
        if len(path) == 2:
            key = (path[0], path[1])
            return self._within(key, self._limits[key])
        return True

    def _within(self, key: ProfileKey, limit: int) -> bool:
        return limit == UNBOUNDED or self._of_profile[key] < limit

    def _leaves_room(self, harness_id: str) -> bool:
        return self._of_harness[harness_id] < TIMES_FREE * self.room  # I23

    def _left(self, run_id: str, key: ProfileKey) -> None:
        del self._waiting[run_id]
        self._lines[key] -= 1
        if not self._lines[key]:
            del self._lines[key], self._limits[key]
