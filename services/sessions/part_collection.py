"""Collects parts that no head names and no run can commit any more (thread state, "Unreferenced pending writes are collected").

A part is looked at when its time has come; one that is still needed is looked at again later. So whatever dies in between, a part that
is not needed goes in the end, and how much is looked at in a turn is bounded.
"""

from collections import deque
from typing import Final

from services.common.clock import Clock
from services.common.logs import get_logger
from services.sessions.parts import is_needed
from services.sessions.store import SessionStore

PARTS_OF_A_TURN: Final = 500
"""Parts looked at by age, and parts of closed epochs deleted, at a time (I35)."""
LOOKS_OF_A_TURN: Final = 100
"""A turn ends when nothing more is due, or after so many: what is written faster than that is limited by it and by nothing else."""
_CLOSED_REMEMBERED: Final = 1024

_log = get_logger(__name__)


class PartCollector:
    """`turn` is called again and again. `recheck_milliseconds`: how long a part that is needed is left alone."""

    def __init__(self, store: SessionStore, clock: Clock, *, recheck_milliseconds: int) -> None:
        self._store = store
        self._clock = clock
        self._recheck = recheck_milliseconds
        # Only a short cut: what is forgotten here, or by a process that dies, is found by age.
        self._closed: deque[str] = deque(maxlen=_CLOSED_REMEMBERED)

    def collect_soon(self, binding_id: str) -> None:
        """The epoch of this binding is closed: its parts can go at the next turn."""
        self._closed.append(binding_id)

    async def turn(self) -> None:
        """Deletes a bounded number of parts nobody needs."""
        deleted = await self._collect_closed()
        for _ in range(LOOKS_OF_A_TURN):
            looked_at, gone = await self._collect_by_age()
            deleted += gone
            if looked_at < PARTS_OF_A_TURN:
                break
        if deleted:
            _log.info("parts_collected", count=deleted)

    async def _collect_closed(self) -> int:
        deleted = 0
        while self._closed and deleted < PARTS_OF_A_TURN:
            binding_id = self._closed[0]
            part_refs = await self._store.parts_of_binding(binding_id, PARTS_OF_A_TURN - deleted)
            for part_ref in part_refs:
                await self._store.delete_part(part_ref)
            deleted += len(part_refs)
            if deleted < PARTS_OF_A_TURN:
                self._closed.remove(binding_id)
        return deleted

    async def _collect_by_age(self) -> tuple[int, int]:
        """How many parts were due and looked at, and how many of them are gone now."""
        now = int(self._clock.wall() * 1000)
        deleted = 0
        due = await self._store.parts_to_check(now, PARTS_OF_A_TURN)
        for part_ref, part, rev in due:
            # The binding is read after the part: a run that is not in the slot now never commits again.
            found = await self._store.binding_by_id(part["binding_id"])
            if is_needed(part_ref, part, None if found is None else found[1]):
                await self._store.check_part_later(part_ref, part, rev, now + self._recheck)
            else:
                await self._store.delete_part(part_ref)
                deleted += 1
        return len(due), deleted
