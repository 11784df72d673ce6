"""Who may be executed here, and in which order those who may not yet wait (I23, I35).

Two bounds: executions of this process, and of one profile in this process (`limits.max_concurrent_runs` of the operator file). A run
whose profile is full waits aside, so that it is in nobody's way who could be executed.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

UNBOUNDED: Final = 0
"""Limit of a profile that has none but the process's own."""

ProfileKey = tuple[str, str]
"""Harness and profile."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a profile may have of this process: at most `limit` executions at once, `UNBOUNDED` for as many as there is room for."""

    key: ProfileKey
    limit: int


@dataclass(slots=True)
class _Aside:
    """Those who wait for an execution of one profile; there only while somebody does, and then as many executions as `limit` are counted."""

    limit: int
    line: deque[str]


class Places:
    """The executions of one process and the lines before them. `most` bounds the first; `most_waiting` each of the lines.

    Whoever must be executed at once (takeovers, forced ends) is counted and never waits, so counts may pass their bounds.
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most = most
        self._most_waiting = most_waiting
        self._taken = 0
        self._of_profile: Counter[ProfileKey] = Counter()
        self._line: deque[str] = deque()
        self._aside: dict[ProfileKey, _Aside] = {}
        self._handed: dict[str, ProfileKey] = {}
        self._waiting: set[str] = set()

    @property
    def taken(self) -> int:
        """Places that are taken, by executions or for them."""
        return self._taken

    @property
    def has_room(self) -> bool:
        """Whether one more run may be executed, as far as its profile allows."""
        return self._taken < self._most

    def waits(self, run_id: str) -> bool:
        """Whether the run is in one of the lines."""
        return run_id in self._waiting

    def is_full(self) -> bool:
        """Whether one more run would have to wait and the line has no place for it."""
        return not self.has_room and len(self._line) >= self._most_waiting

    def is_full_for(self, share: Share) -> bool:
        """The same for the profile: each has a line of its own, so that one cannot fill those of others (I23)."""
        return not self.may_have(share) and self._length_of(share.key) >= self._most_waiting

    def may_have(self, share: Share) -> bool:
        """Whether a run of the profile that comes now may be executed, as far as its profile goes: those who wait aside come before it."""
        within = share.limit == UNBOUNDED or self._of_profile[share.key] < share.limit
        return within and share.key not in self._aside

    def take(self) -> None:
        """Take a place, whether there is one or not."""
        self._taken += 1

    def give(self) -> None:
        """Give a place back."""
        self._taken -= 1

    def take_of(self, key: ProfileKey) -> None:
        """Count an execution of the profile, whether it is within the limit or not."""
        self._of_profile[key] += 1

    def give_of(self, key: ProfileKey) -> None:
        """An execution of the profile is over; whoever waits aside for it is handed it and goes before the whole line."""
        self._of_profile[key] -= 1
        aside = self._aside.get(key)
        while aside is not None and aside.line and self._of_profile[key] < aside.limit:
            run_id = aside.line.popleft()
            # Counted from here on: nobody who comes later can take what it was handed.
            self._of_profile[key] += 1
            self._handed[run_id] = key
            self._line.appendleft(run_id)
        if aside is not None and not aside.line:
            del self._aside[key]
        if not self._of_profile[key]:
            del self._of_profile[key]

    def handed(self, run_id: str) -> ProfileKey | None:
        """The profile of which the run was handed an execution, said once; None: it never waited aside."""
        return self._handed.pop(run_id, None)

    def enter(self, run_id: str) -> bool:
        """Put a run at the end of the line; False if it is in one, or if the line is as long as it may be."""
        if run_id in self._waiting or len(self._line) >= self._most_waiting + self._most:
            return False
        self._line.append(run_id)
        self._waiting.add(run_id)
        return True

    def next(self) -> str | None:
        """Take the first out of the line; None if nobody waits."""
        if not self._line:
            return None
        run_id = self._line.popleft()
        self._waiting.discard(run_id)
        return run_id

    def put_aside(self, run_id: str, share: Share) -> bool:
        """Let a run wait until an execution of its profile is over; False if it waits already, or the profile's line is as long as it may be."""
        if run_id in self._waiting or self._length_of(share.key) >= self._most_waiting + self._most:
            return False
        aside = self._aside.setdefault(share.key, _Aside(share.limit, deque()))
        aside.limit = share.limit or aside.limit
        aside.line.append(run_id)
        self._waiting.add(run_id)
        return True

    def forget_lines(self) -> None:
        """Nobody waits any more."""
        self._line.clear()
        self._aside.clear()
        self._waiting.clear()

    def _length_of(self, key: ProfileKey) -> int:
        aside = self._aside.get(key)
        return 0 if aside is None else len(aside.line)
