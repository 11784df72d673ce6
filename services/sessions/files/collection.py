"""Collects files whose time is over, and parts that belong to no file: of deleted files, and of uploads that nobody finished."""

from typing import Final

from services.common.clock import Clock
from services.common.logs import get_logger
from services.sessions.files.store import FileStore

ITEMS_OF_A_TURN: Final = 500
"""Files, and parts, looked at together (I35)."""
LOOKS_OF_A_TURN: Final = 100

_log = get_logger(__name__)


class FileCollector:
    """`turn` is called again and again. `recheck_milliseconds`: how long a part that is needed is left alone."""

    def __init__(self, store: FileStore, clock: Clock, *, recheck_milliseconds: int) -> None:
        self._store = store
        self._clock = clock
        self._recheck = recheck_milliseconds

    async def turn(self) -> None:
        """Deletes a bounded number of files and parts."""
        files = parts = 0
        for _ in range(LOOKS_OF_A_TURN):
            deleted = await self._store.delete_expired(self._now(), ITEMS_OF_A_TURN)
            files += deleted
            if deleted < ITEMS_OF_A_TURN:
                break
        for _ in range(LOOKS_OF_A_TURN):
            looked_at, gone = await self._collect_parts()
            parts += gone
            if looked_at < ITEMS_OF_A_TURN:
                break
        if files or parts:
            _log.info("files_collected", files=files, parts=parts)

    async def _collect_parts(self) -> tuple[int, int]:
        """How many parts were due and looked at, and how many of them are gone now."""
        now, deleted = self._now(), 0
        due = await self._store.parts_to_check(now, ITEMS_OF_A_TURN)
        for key, part, rev in due:
            # The file is read after the part: an upload that has not made its file by now is over, for it is bounded and the part's time is not up before.
            file = await self._store.file(part["file_id"])
            if file is not None and file["upload_id"] == part["upload_id"]:
                # A file that expires soon is looked at then.
                await self._store.check_part_later(
                    key, part, rev, min(now + self._recheck, max(file["expires_at"], now) + 1)
                )
            else:
                await self._store.delete_part(key)
                deleted += 1
        return len(due), deleted

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)
