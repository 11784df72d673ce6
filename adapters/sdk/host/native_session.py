"""The provider's native session of one runtime: opened by the host where nobody has, named before the first event (portable abstractions, Session managers)."""

from adapters.sdk.errors import ProtocolError
from adapters.sdk.session import MAX_NATIVE_ID_CHARACTERS, ProviderSessionContext, ProviderSessionManager
from harness.adapter.v1 import descriptor_pb2
from harness.event.v1 import event_pb2

_CALLER_ASSIGNED = descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED


class NativeSession:
    """Knows the session's name once somebody has given it one. Whoever calls `open` holds the runtime's lock."""

    __slots__ = ("_context", "_manager", "_name", "_style")

    def __init__(
        self,
        manager: ProviderSessionManager,
        style: "descriptor_pb2.SessionIdStyle.ValueType",
        context: ProviderSessionContext,
    ) -> None:
        self._manager = manager
        self._style = style
        self._context = context
        self._name = ""

    async def open(self, committed: str) -> str:
        """The name to announce before the first event of a turn that came with the name `committed`; empty: there is none to announce.

        A control plane that called OpenSession sends the name with the turn, and nothing is opened here. A worker serves no OpenSession:
        there the first turn comes without a name. A name that did not become durable is announced again, not opened again.
        """
        if committed or self._style != _CALLER_ASSIGNED:
            return ""
        if not self._name:
            self._name = self._context.context.native_session_id or await open_session(self._manager, self._context)
        return self._name

    async def observe(self, draft: event_pb2.EventDraft) -> str | None:
        """The native id of a session event of the adapter, validated by its session manager; None: the event is dropped."""
        return await self._manager.observe(self._context.binding, draft)


async def open_session(manager: ProviderSessionManager, context: ProviderSessionContext) -> str:
    """What the adapter calls the session; empty if the provider names it later. Raises ProtocolError for a name over 512 characters (I35)."""
    name = await manager.open(context)
    if len(name) > MAX_NATIVE_ID_CHARACTERS:
        raise ProtocolError("The provider's session id is too long.", code="protocol_violation")
    return name
