"""What a run is executed with: its pinned version and what stands behind its profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from harness.adapter.v1 import descriptor_pb2
from harness.catalog.v1 import agent_pb2, resolution_service_pb2
from harness.common.v1 import blueprint_pb2, capability_pb2, capability_token_pb2, placement_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from services.runs.host import Host

DEFAULT_RUN_SECONDS: Final = 900
MAX_RUN_SECONDS: Final = 86_400
MAX_REPLICAS_TOLD: Final = 8  # of one facade, in one context
_SUPPORTED: Final = (capability_pb2.CAPABILITY_LEVEL_NATIVE, capability_pb2.CAPABILITY_LEVEL_EMULATED)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pinned version, the profile as the catalog knows it, and what follows from the two."""

    version: agent_pb2.AgentVersion
    profile: resolution_service_pb2.ResolveProfileResponse
    grants: tuple[resolution_service_pb2.ToolGrant, ...] = ()
    """The tools the agent may call, once they were looked up; nobody looks where it has none."""
    files: tuple[runtime_pb2.FileRef, ...] = ()
    """The files of the turn, once they were looked up; nobody looks where it has none."""

    @property
    def in_sandbox(self) -> bool:
        """Whether the runtime is a sandbox worker rather than part of an adapter host."""
        return self.profile.placement == placement_pb2.PLACEMENT_SANDBOX_POD

    @property
    def names_sessions(self) -> bool:
        """Whether the adapter derives the id of the provider's session from the binding, so that it is known before the first turn."""
        return self.profile.descriptor.session_id_style == descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED

    @property
    def has_tools(self) -> bool:
        """Whether the agent may call portable tools, so that the run must be closed to them before its head."""
        return bool(self.version.blueprint.tools.bindings)

    @property
    def run_seconds(self) -> int:
        """Seconds from the first issue to the deadline: the blueprint's limit, the profile's if that is lower."""
        limits = self.version.blueprint.limits
        wanted = limits.max_run_seconds if limits.HasField("max_run_seconds") else DEFAULT_RUN_SECONDS
        bound = self.profile.max_run_seconds or MAX_RUN_SECONDS
        return min(wanted, bound, MAX_RUN_SECONDS)

    @property
    def durability(self) -> payload_pb2.ThreadDurability.ValueType:
        """What becomes of the conversation's state when a run of it completes (events, rule 5)."""
        strategy = self.profile.descriptor.thread_state_strategy
        persistence = self.version.blueprint.thread.persistence
        if strategy == descriptor_pb2.THREAD_STATE_STRATEGY_EPHEMERAL:
            return payload_pb2.THREAD_DURABILITY_EPHEMERAL
        if persistence == blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL:
            return payload_pb2.THREAD_DURABILITY_EPHEMERAL
        if strategy == descriptor_pb2.THREAD_STATE_STRATEGY_REMOTE_MANAGED:
            return payload_pb2.THREAD_DURABILITY_REMOTE
        return payload_pb2.THREAD_DURABILITY_DURABLE

    def may_ask(self, requested: payload_pb2.InterruptRequested) -> bool:
        """Whether the harness is known to resume from what it asks: an interrupt nobody can answer ends the run instead."""
        if requested.interrupt_type == payload_pb2.INTERRUPT_TYPE_FORM_INPUT:
            return self._has("interrupt.form_input")
        one = self._has("interrupt.tool_approval")
        return one and (len(requested.tool_approvals) == 1 or self._has("interrupt.multi_tool"))

    @property
    def takes_files(self) -> bool:
        """Whether turns may bring files, so that the runtime is told where to read them."""
        return self._has("input.images") or self._has("input.documents")

    def _has(self, capability: str) -> bool:
        claims = self.profile.descriptor.capabilities
        return capability in claims and claims[capability].level in _SUPPORTED

    @property
    def model_endpoint(self) -> str:
        """Id of the endpoint that a sandboxed runtime reaches through the model egress; empty: none."""
        return self.profile.model_endpoint

    def host(self, address: str) -> Host:
        """How a runtime at this address is called."""
        token = self.profile.adapter_token
        # I28: the credential of the profile's host goes to that host alone, never to where an earlier one was.
        return Host(address, SecretStr(token) if token and address == self.profile.adapter_address else None)

    def runtime_context(self, native_session_id: str, facades: Mapping[str, str]) -> runtime_pb2.RuntimeContext:
        """What holds for the life of the binding's runtime. `facades`: by audience the addresses of a facade's replicas, of which any will do."""
        context = runtime_pb2.RuntimeContext(
            contract_version=self.profile.contract_version,
            blueprint=self.version.blueprint,
            agent_version=self.version.version,
            placement=self.profile.placement,
            native_session_id=native_session_id,
            facades=[
                capability_token_pb2.FacadeEndpoint(audience=audience, address=address)
                for audience, addresses in facades.items()
                for address in addresses.split(",")[:MAX_REPLICAS_TOLD]
            ],
        )
        context.tools.extend(grant.descriptor for grant in self.grants)
        if self.profile.HasField("profile_settings"):
            context.profile_settings.CopyFrom(self.profile.profile_settings)
        return context
