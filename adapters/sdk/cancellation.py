"""What tells an adapter to stop: a token that is set once, and a deadline."""

import asyncio
import time

from harness.event.v1 import payload_pb2

CancelReason = payload_pb2.CancelReason


class CancellationToken:
    """Set once, when the run must stop. The task that iterates the adapter's stream is cancelled as well, so most adapters
    need only let CancelledError pass; the token is for code that runs beside it (threads, child tasks, callbacks).
    """

    __slots__ = ("_event", "_reason")

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self._reason: payload_pb2.CancelReason.ValueType = payload_pb2.CANCEL_REASON_UNSPECIFIED

    @property
    def is_cancelled(self) -> bool:
        """Whether the run must stop. Safe to read from any thread."""
        return self._reason != payload_pb2.CANCEL_REASON_UNSPECIFIED

    @property
    def reason(self) -> "payload_pb2.CancelReason.ValueType":
        """Why; CANCEL_REASON_UNSPECIFIED until then."""
        return self._reason

    def cancel(self, reason: "payload_pb2.CancelReason.ValueType") -> None:
        """Sets the token; the first reason stays. The host's, on its event loop."""
        if not self.is_cancelled:
            self._reason = reason
            if self._event is not None:
                self._event.set()

    async def wait(self) -> None:
        """Returns when the run must stop."""
        if self._event is None:
            self._event = asyncio.Event()
        if not self.is_cancelled:
            await self._event.wait()


class Deadline:
    """A moment on the wall clock, in Unix seconds, after which the host ends the run."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    def remaining(self, at_most: float | None = None) -> float:
        """Seconds left, never negative, optionally no more than `at_most`: the timeout of the next provider call."""
        left = max(0.0, self.at - time.time())
        return left if at_most is None else min(left, at_most)
