"""Ready-made halves of the contract: override what your provider has, leave the rest.

`BaseAdapter` and `BaseRuntime` fill in the optional methods; `SimpleAdapter` needs a descriptor and `stream` alone.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from adapters.sdk.contract import Evaluation, HarnessRuntime, RuntimeConstruction, Turn
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.health import Probe
from adapters.sdk.session import EventAssignedSessions, ProviderSessionManager
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import blueprint_pb2, error_pb2, health_pb2, placement_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2


class BaseRuntime(ABC):
    """A runtime with nothing to initialise, cancel or release, and without interrupts."""

    async def initialize(self) -> None:  # noqa: B027 - meant to be overridden where there is something to do
        """Nothing to prepare."""

    @abstractmethod
    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        """Runs one turn: any events, then exactly one terminal."""

    async def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[event_pb2.EventDraft]:
        """Refused: this harness never pauses."""
        raise ConfigurationError("This harness has no interrupts to resume.", code="interrupts_unsupported")
        yield  # an iterator that fails when it is first asked

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """None: this harness never pauses."""
        return None

    async def cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        """Nothing beyond the CancelledError that the stream gets."""
        return None

    async def restart(self) -> None:  # noqa: B027 - meant to be overridden where there is something to do
        """Nothing to release."""

    async def cleanup(self) -> None:  # noqa: B027 - meant to be overridden where there is something to do
        """Nothing to release."""


class BaseAdapter(ABC):
    """An adapter without dependencies to look at and without rules beyond its options schema."""

    @property
    @abstractmethod
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What the adapter is; see `build_descriptor`."""

    @property
    def session_manager(self) -> ProviderSessionManager:
        """Native ids, if any, arrive with `session_updated`."""
        return EventAssignedSessions()

    async def health(self) -> Sequence[health_pb2.HealthCheck | Probe]:
        """Nothing that could be amiss."""
        return ()

    async def evaluate(
        self,
        blueprint: blueprint_pb2.AgentBlueprint,
        placement: "placement_pb2.Placement.ValueType",
        profile_settings: Mapping[str, Any],
    ) -> Evaluation:
        """No objection; the catalog has checked the options against the schema."""
        return Evaluation()

    @abstractmethod
    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime object for one binding."""


class SimpleAdapter(BaseAdapter):
    """The smallest adapter: a descriptor, and how one turn is streamed. It keeps nothing between turns but what it writes to `turn.thread`."""

    @abstractmethod
    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        """Runs one turn: any events, then exactly one terminal. Usually an async generator."""

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime whose turns are this adapter's `stream`."""
        return _SimpleRuntime(self)


class _SimpleRuntime(BaseRuntime):
    def __init__(self, adapter: SimpleAdapter) -> None:
        self._adapter = adapter

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        return self._adapter.stream(turn)
