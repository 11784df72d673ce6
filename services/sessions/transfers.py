"""How many parts are on their way through this process at once: each may take a part's bound of memory (I14, I35)."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from services.common.errors import HarnessError, Reason


class Transfers:
    """At most `limit` at once, and at most `limit_of_binding` of one binding, so that one runtime cannot take all. `what` is transferred: parts, or files."""

    def __init__(self, *, limit: int, limit_of_binding: int, what: str = "parts") -> None:
        self._what = what
        self._limit = limit
        self._limit_of_binding = limit_of_binding
        self._of_binding: Counter[str] = Counter()
        self._count = 0

    @contextmanager
    def one(self, binding_id: str) -> Generator[None]:
        """Counts one transfer while it lasts; `capacity`, retryable, when there are too many."""
        if self._count >= self._limit or self._of_binding[binding_id] >= self._limit_of_binding:
            raise HarnessError(
                Reason.CAPACITY,
                f"Too many {self._what} are transferred at once (at most {self._limit}, {self._limit_of_binding} of a binding): try again.",
                retry_after=0.5,
            )
        self._count += 1
        self._of_binding[binding_id] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._of_binding[binding_id] -= 1
            if not self._of_binding[binding_id]:
                del self._of_binding[binding_id]
