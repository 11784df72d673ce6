"""What the catalog knows at one moment, and its revision: a digest of everything a validation depends on (REST API)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from harness.catalog.v1 import harness_pb2 as pb
from harness.common.v1.health_pb2 import HealthReport
from harness.common.v1.placement_pb2 import (
    PLACEMENT_IN_PROCESS,
    PLACEMENT_PROVIDER_MANAGED,
    PLACEMENT_SANDBOX_POD,
    Placement,
)
from services.catalog.canonical import canonical_json, digest
from services.catalog.capabilities import complete
from services.catalog.descriptor_policy import CONTRACT_VERSIONS, KnownDescriptor
from services.catalog.operator_file import AllowedAdapter, ProfileEntry
from services.catalog.tool_registry import RegisteredTool, Tools

PLACEMENTS: Final[Mapping[str, Placement.ValueType]] = {
    "provider_managed": PLACEMENT_PROVIDER_MANAGED,
    "sandbox_pod": PLACEMENT_SANDBOX_POD,
    "in_process": PLACEMENT_IN_PROCESS,
}
CONTRACT_VERSION: Final = max(CONTRACT_VERSIONS)
DISABLED: Final = "The operator disabled this harness."


@dataclass(frozen=True)
class HarnessState:
    """One allow-listed harness as it is known now. `blocked` is why a rule shuts it out, empty if none does."""

    adapter: AllowedAdapter
    known: KnownDescriptor | None = None
    blocked: str = ""
    availability: pb.Availability.ValueType = pb.AVAILABILITY_UNAVAILABLE
    reason: str = "The adapter has not answered yet."
    incarnation: str = ""
    health: HealthReport | None = None
    looked_at: float = float("-inf")
    """Monotonic seconds of the last look that ended."""

    @property
    def available(self) -> bool:
        return self.availability == pb.AVAILABILITY_AVAILABLE


@dataclass(frozen=True)
class Snapshot:
    """All harnesses at one moment, by id. Every decision of one request is taken on one snapshot."""

    harnesses: Mapping[str, HarnessState]
    revision: str
    retention_profiles: tuple[str, ...]
    tools: Tools = field(default_factory=dict[str, RegisteredTool])


def catalog_revision(states: Iterable[HarnessState], retention_profiles: Iterable[str], tools: Tools) -> str:
    """`cat_` and 40 hex digits. Not of health, address or incarnation: those change no verdict (I16)."""
    parts: list[Any] = [sorted(CONTRACT_VERSIONS), sorted(retention_profiles)]
    # Of a tool a verdict depends on its being there and being sensitive; whatever else changes is in force at once.
    parts.append(sorted([tool.tool_id, tool.sensitive] for tool in tools.values()))
    parts += sorted(([state.adapter.harness_id, _verdict_parts(state)] for state in states), key=lambda part: part[0])
    return "cat_" + hashlib.sha256(canonical_json(parts)).hexdigest()[:40]


def _verdict_parts(state: HarnessState) -> list[Any]:
    adapter = state.adapter
    descriptor = None if state.known is None else digest(state.known.document)
    profiles = {profile.id: digest(profile.model_dump(mode="json")) for profile in adapter.profiles.values()}
    return [adapter.enabled, bool(state.blocked), descriptor, profiles]


def public_harness(state: HarnessState) -> pb.Harness:
    """The harness as authors see it: no address, setting, sandbox or incarnation (I18)."""
    harness = pb.Harness(
        harness_id=state.adapter.harness_id,
        display_name=state.adapter.harness_id,
        availability=state.availability,
        reason=state.reason,
        # I21: no claim is certified without evidence that matches the running versions, and none is kept yet.
        certification=pb.CERTIFICATION_BLOCKED if state.blocked else pb.CERTIFICATION_EXPERIMENTAL,
        profiles=[_public_profile(profile) for profile in state.adapter.profiles.values()],
    )
    if state.known is None:
        for key, capability in complete({}).items():
            harness.capabilities[key].CopyFrom(capability)
        return harness
    said = state.known.descriptor
    harness.display_name = said.display_name
    harness.description = said.description
    harness.adapter_version = said.adapter_version
    harness.sdk_name = said.sdk_name
    harness.sdk_version = said.sdk_version
    harness.contract_version = state.known.contract_version
    harness.placements.extend(said.placements)
    harness.options_schema.CopyFrom(said.options_schema)
    harness.presentation.CopyFrom(said.presentation)
    for key, capability in state.known.capabilities.items():
        harness.capabilities[key].CopyFrom(capability)
    return harness


def _public_profile(profile: ProfileEntry) -> pb.Profile:
    return pb.Profile(
        profile_id=profile.id,
        display_name=profile.display_name or profile.id,
        description=profile.description,
        placement=PLACEMENTS[profile.placement],
        model_aliases=profile.model_aliases,
    )
