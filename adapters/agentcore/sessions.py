"""Sessions at the provider: named from binding and epoch, and stopped when the conversation is closed."""

from collections.abc import Awaitable, Callable

from adapters.agentcore.requests import checked_session
from adapters.sdk.session import BindingView, CallerAssignedSessions, ClosedSession

Stop = Callable[[ClosedSession, str], Awaitable[None]]


class AgentCoreSessions(CallerAssignedSessions):
    """The names are 43 characters of what the service takes. `stop` ends the session of a closed conversation by its name."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("hm")
        self._stop = stop

    def name_of(self, binding: BindingView) -> str:
        """What the service knows the session by. Raises InternalError if it is no name the service takes."""
        return checked_session(self.derive(binding))

    async def close(self, session: ClosedSession) -> None:
        """Stops it, whichever process its runtime was in. What was never begun is not there, and so is closed."""
        await self._stop(session, self.name_of(session.binding))
