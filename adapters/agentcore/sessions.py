"""Sessions at the provider: named from binding and epoch, and stopped when the conversation is closed."""

from collections.abc import Awaitable, Callable

from adapters.sdk.session import BindingView, CallerAssignedSessions

Stop = Callable[[], Awaitable[None]]


class AgentCoreSessions(CallerAssignedSessions):
    """The names are 43 characters of what the service takes. A session ends by itself when it is idle; while its runtime is here it is stopped at once."""

    def __init__(self) -> None:
        super().__init__("hm")
        self._stops: dict[tuple[str, int], Stop] = {}

    def attach(self, binding: BindingView, stop: Stop) -> None:
        """How the session of a living runtime is stopped."""
        self._stops[binding.binding_id, binding.epoch] = stop

    def detach(self, binding: BindingView, stop: Stop) -> None:
        """The runtime is gone."""
        if self._stops.get((binding.binding_id, binding.epoch)) == stop:
            del self._stops[binding.binding_id, binding.epoch]

    async def close(self, binding: BindingView, native_session_id: str) -> None:
        """Stops it, where that is allowed and its runtime is in this process."""
        stop = self._stops.get((binding.binding_id, binding.epoch))
        if stop is not None:
            await stop()
