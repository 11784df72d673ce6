"""Native sessions of a provider: who names them, and how they begin and end (portable abstractions, Session managers)."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_pb2

MAX_NATIVE_ID_CHARACTERS = 512
_PRINTABLE = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class BindingView:
    """What an adapter knows of a binding: opaque, and never whose it is."""

    binding_id: str
    epoch: int
    runtime_generation: int


@dataclass(frozen=True, slots=True)
class ProviderSessionContext:
    """For which binding a native session is opened, and what its runtime would be created with."""

    binding: BindingView
    context: runtime_pb2.RuntimeContext


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """A native session whose conversation is closed. All that ending it may need is here: its runtime may be gone, or was in another process."""

    binding: BindingView
    # Empty when none was ever assigned.
    native_session_id: str = field(repr=False)
    # Empty when whoever closes does not say it.
    agent_id: str = ""
    # The operator's settings of the profile; empty when whoever closes does not say them. Never to be shown to a client.
    profile_settings: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


class ProviderSessionManager(Protocol):
    """Provider mechanics only: it never chooses owner, agent version, conversation or epoch."""

    async def open(self, context: ProviderSessionContext) -> str:
        """The native session id before the first turn; empty when the provider assigns it with an event. Idempotent."""
        ...

    async def observe(self, binding: BindingView, event: event_pb2.EventDraft) -> str | None:
        """Called with each `session.updated` an adapter yields: the validated native id to store, or None to drop the event."""
        ...

    async def close(self, session: ClosedSession) -> None:
        """Ends the provider's session. Idempotent; a session that is not there is closed."""
        ...


class EventAssignedSessions:
    """The provider names the session during the first turn; the adapter yields `session_updated(id)`. Override `close` if there is something to end."""

    async def open(self, context: ProviderSessionContext) -> str:
        """The id known so far, if any."""
        return context.context.native_session_id

    async def observe(self, binding: BindingView, event: event_pb2.EventDraft) -> str | None:
        """The id in the event, if it is one line of printable ASCII."""
        native_id = event.native_session_id
        return native_id if _PRINTABLE.fullmatch(native_id) else None

    async def close(self, session: ClosedSession) -> None:
        """Nothing to end."""


class CallerAssignedSessions:
    """The adapter derives the session's name from the binding and epoch. Override `close` if there is something to end."""

    def __init__(self, prefix: str = "hm") -> None:
        self._prefix = prefix

    async def open(self, context: ProviderSessionContext) -> str:
        """The same binding and epoch give the same id, 40 characters after the prefix; nothing of the binding can be read from it."""
        return self.derive(context.binding)

    def derive(self, binding: BindingView) -> str:
        """The id itself, for use inside a turn."""
        name = f"{binding.binding_id}\n{binding.epoch}".encode()
        return f"{self._prefix}-{hashlib.blake2b(name, digest_size=20, person=b'native-session').hexdigest()}"

    async def observe(self, binding: BindingView, event: event_pb2.EventDraft) -> str | None:
        """A provider does not rename such a session."""
        return None

    async def close(self, session: ClosedSession) -> None:
        """Nothing to end."""
