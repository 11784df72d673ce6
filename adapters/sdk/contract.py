"""What an adapter is to the host that serves it (contract, HarnessAdapter and HarnessRuntime protocols)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from google.protobuf import json_format, struct_pb2

from adapters.sdk.cancellation import CancellationToken, Deadline
from adapters.sdk.files import Files
from adapters.sdk.health import Probe
from adapters.sdk.session import BindingView, ProviderSessionManager
from adapters.sdk.thread_state import ThreadState
from adapters.sdk.tools import Tools
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import blueprint_pb2, capability_pb2, error_pb2, health_pb2, placement_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2


class RuntimeConstruction:
    """What holds for a runtime's life: narrowed, immutable values. Messages in it must not be changed."""

    __slots__ = ("binding", "context")

    def __init__(self, binding: BindingView, context: runtime_pb2.RuntimeContext) -> None:
        self.binding = binding
        self.context = context

    @property
    def blueprint(self) -> blueprint_pb2.AgentBlueprint:
        """The normalised blueprint of the pinned agent version."""
        return self.context.blueprint

    @property
    def options(self) -> dict[str, Any]:
        """The harness options of the blueprint."""
        return plain(self.context.blueprint.harness.options)

    @property
    def profile_settings(self) -> dict[str, Any]:
        """The operator's settings of the profile for this adapter. Never to be shown to a client."""
        return plain(self.context.profile_settings)

    @property
    def tools(self) -> Sequence[runtime_pb2.ToolDescriptor]:
        """Portable tools the agent may call."""
        return self.context.tools

    @property
    def skills(self) -> Sequence[runtime_pb2.SkillManifest]:
        """Skills available to the agent."""
        return self.context.skills

    @property
    def placement(self) -> "placement_pb2.Placement.ValueType":
        """Where this runtime runs."""
        return self.context.placement

    @property
    def limits(self) -> blueprint_pb2.LimitsSpec:
        """Bounds of one run."""
        return self.context.blueprint.limits


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, as the adapter sees it (contract, Turn input)."""

    run_id: str
    # Number of the turn in its binding, from 1.
    number: int
    message: str = field(repr=False)
    # The rendered system prompt of this turn.
    system_prompt: str = field(repr=False)
    files: Sequence[runtime_pb2.FileRef]
    # Opaque digests, for per-user and per-conversation behaviour of a provider.
    user_id: str
    conversation_id: str
    # The provider's native session id as committed now; empty when there is none.
    native_session_id: str = field(repr=False)
    # Revision of the thread's committed head; zero: there is none.
    thread_revision: int
    # W3C trace context of the caller, or empty.
    traceparent: str
    deadline: Deadline
    cancellation: CancellationToken
    thread: ThreadState
    # The portable tools the run may call.
    tools: Tools
    construction: RuntimeConstruction
    raw: runtime_pb2.TurnInput = field(repr=False)
    # Reads the content of `files`.
    files_access: Files = field(default_factory=lambda: Files(None))

    @property
    def client_context(self) -> dict[str, Any]:
        """Structured context from the client: untrusted."""
        return plain(self.raw.client_context)


class HarnessRuntime(Protocol):
    """One binding's runtime. The host calls it from one event loop, one of stream, resume, restart and cleanup at a time."""

    async def initialize(self) -> None:
        """Prepares clients and processes. Called before the first turn and again after `restart`; an error is kept and given again."""
        ...

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        """Runs one turn: any events, then exactly one terminal. Cancelled by CancelledError at an await."""
        ...

    def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[event_pb2.EventDraft]:
        """Runs the turn that answers an interrupt; the same rules as `stream`."""
        ...

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """The canonical summary of the native pause, or None."""
        ...

    async def cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        """Tells the provider to stop, if letting CancelledError pass is not enough; says what may have happened, None if unknown. Idempotent."""
        ...

    async def restart(self) -> None:
        """Releases provider clients and processes; durable conversation state stays."""
        ...

    async def cleanup(self) -> None:
        """Releases everything. Idempotent; cut off at its deadline."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an adapter says of a blueprint. No issues: it can run."""

    issues: Sequence[error_pb2.Issue] = ()
    # Options with the adapter's defaults written out; None: as given.
    normalized_options: Mapping[str, Any] | None = None
    # Where this blueprint's capabilities differ from the descriptor's.
    capabilities: Mapping[str, capability_pb2.Capability] = field(default_factory=dict[str, capability_pb2.Capability])


class HarnessAdapter(Protocol):
    """One harness. Importing and constructing it makes no network call."""

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What the adapter is; constant for the life of the process."""
        ...

    @property
    def session_manager(self) -> ProviderSessionManager:
        """The provider's native session mechanics."""
        ...

    async def health(self) -> Sequence[health_pb2.HealthCheck | Probe]:
        """Looks, free of side effects, at what the adapter needs: checks it has made, and probes for the host to make. The host adds the packages of
        the descriptor and its own capacity; all of it is bounded.
        """
        ...

    async def evaluate(
        self,
        blueprint: blueprint_pb2.AgentBlueprint,
        placement: "placement_pb2.Placement.ValueType",
        profile_settings: Mapping[str, Any],
    ) -> Evaluation:
        """Whether and how the harness can run a blueprint. Pure."""
        ...

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime object for one binding: small, without network calls; `initialize` does the work."""
        ...


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one reconciliation did; `left` changes wait for the next. `unlisted` are agents that have something here and were not named."""

    created: int = 0
    updated: int = 0
    removed: int = 0
    left: int = 0
    unlisted: Sequence[str] = ()
    # Codes of changes that failed, never a provider's text.
    faults: Sequence[str] = ()


@runtime_checkable
class AgentReconciler(Protocol):
    """What an adapter implements besides when its provider keeps something for each agent (AgentReconciliationService). Optional."""

    async def reconcile_agents(
        self, profile_settings: Mapping[str, Any], agent_ids: Sequence[str], ended_agent_ids: Sequence[str]
    ) -> Reconciled:
        """Makes what `agent_ids` lack, removes what `ended_agent_ids` have, and nothing else. Idempotent; may run at the same time as others, and as
        turns. Raises HarnessError when the provider cannot be asked at all.
        """
        ...


@runtime_checkable
class AdapterCloser(Protocol):
    """What an adapter implements besides when its process holds something that belongs to no runtime. Optional."""

    async def close(self) -> None:
        """Called once, when the process stops and every runtime is released; cut off after a few seconds. Nothing is asked of the adapter afterwards."""
        ...


def plain(value: struct_pb2.Struct) -> dict[str, Any]:
    """A Struct as plain JSON values."""
    return json_format.MessageToDict(value) if value.fields else {}
