"""What a run in a host needs of its runtime."""

from collections.abc import AsyncIterator

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2

Stream = AsyncIterator[event_pb2.EventDraft]


class RunHooks:
    """What a run needs of its runtime. `begin` waits for its turn and opens the provider's stream, `told_to_cancel` passes a cancel on,
    `admit` completes a draft that is not plain text (None: drop it), `released` hears that the provider is done.
    """

    async def begin(self) -> Stream:
        """Waits until the runtime is free and ready, and opens the stream."""
        raise NotImplementedError

    async def told_to_cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        """Tells the provider; says what may have happened."""
        raise NotImplementedError

    async def admit(self, draft: event_pb2.EventDraft) -> event_pb2.EventDraft | None:
        """The draft to send."""
        raise NotImplementedError

    def released(self) -> None:
        """The provider's stream is closed."""
        raise NotImplementedError
