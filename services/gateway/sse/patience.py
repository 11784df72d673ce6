"""How long a read of a run that fails is tried again (I35)."""

import asyncio

from services.common.errors import HarnessError, Reason

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 1.0
# Asking again would get the same answer.
_FINAL_REASONS = frozenset(
    (
        Reason.NOT_FOUND,
        Reason.CURSOR_EXPIRED,
        Reason.INVALID_REQUEST,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.UNIMPLEMENTED,
    )
)


class Patience:
    """How long something that fails is tried again: backoff doubles to a second, the whole is bounded (I35)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._backoff = FIRST_BACKOFF_SECONDS

    def reset(self) -> None:
        self._since, self._backoff = None, FIRST_BACKOFF_SECONDS

    async def wait(self) -> bool:
        """Waits before the next try; False when there is to be none."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._seconds:
            return False
        await asyncio.sleep(self._backoff)
        self._backoff = min(self._backoff * 2, MAX_BACKOFF_SECONDS)
        return True


def may_succeed_later(error: HarnessError) -> bool:
    """Whether a read that failed so is worth repeating."""
    return error.reason not in _FINAL_REASONS
