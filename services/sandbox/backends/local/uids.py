"""A user id for each live sandbox, exclusive on the machine, also between several meshes on it (I26)."""

import fcntl
import os
from pathlib import Path

from services.common.errors import HarnessError, Reason

# Of the machine, not of a mesh: two meshes must not give out the same id.
LOCKS = Path("/run/harness-sandbox-uids")


class Uids:
    """Ids `base` to `base + count - 1`. An id is taken while any process holds its lock file's lock: the kernel frees it when the last one dies."""

    def __init__(self, base: int, count: int, locks: Path = LOCKS) -> None:
        self._base = base
        self._count = count
        self._locks = locks
        self._next = 0

    def take(self) -> tuple[int, int]:
        """A free id and the descriptor that holds it, to be handed to the keeper and closed here. `HarnessError` SANDBOX_CAPACITY."""
        self._locks.mkdir(mode=0o700, exist_ok=True)
        for step in range(self._count):
            # Round and round, so that an id just freed rests for as long as possible.
            uid = self._base + (self._next + step) % self._count
            descriptor = os.open(self._locks / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._next = (self._next + step + 1) % self._count
            return uid, descriptor
        raise HarnessError(
            Reason.SANDBOX_CAPACITY, f"All {self._count} user ids for sandboxes are in use.", retry_after=1.0
        )
