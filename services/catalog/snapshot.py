"""What the catalog knows at one moment, and its revision: a digest of everything a validation depends on (REST API)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from harness.catalog.v1 import harness_pb2 as pb
from harness.common.v1.capability_pb2 import Capability
from harness.common.v1.health_pb2 import HealthReport
from harness.common.v1.placement_pb2 import (
    PLACEMENT_IN_PROCESS,
    PLACEMENT_PROVIDER_MANAGED,
    PLACEMENT_SANDBOX_POD,
    Placement,
)
from services.catalog.canonical import canonical_json, digest
from services.catalog.capabilities import only_shown
from services.catalog.descriptor_policy import CONTRACT_VERSIONS, KnownDescriptor
from services.catalog.operator_file import AllowedAdapter
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


Shown = Mapping[str, Mapping[str, Collection[str]]]
"""By harness and profile, the capability keys that evidence shows."""


@dataclass(frozen=True)
class Snapshot:
    """All harnesses at one moment, by id. Every decision of one request is taken on one snapshot."""

    harnesses: Mapping[str, HarnessState]
    revision: str
    retention_profiles: tuple[str, ...]
    tools: Tools = field(default_factory=dict[str, RegisteredTool])
    shown: Shown | None = None
    """Where the operator requires evidence; None: a claim counts as it is."""


def claims_of(
    known: KnownDescriptor, profile_id: str, shown: Mapping[str, Collection[str]] | None
) -> Mapping[str, Capability]:
    """What counts of a harness under a profile; `shown`: by profile, where the operator requires evidence."""
    return known.capabilities if shown is None else only_shown(known.capabilities, shown.get(profile_id, ()))


def catalog_revision(
    states: Iterable[HarnessState], retention_profiles: Iterable[str], tools: Tools, shown: Shown | None = None
) -> str:
    """`cat_` and 40 hex digits. Not of health, address or incarnation: those change no verdict (I16)."""
    parts: list[Any] = [sorted(CONTRACT_VERSIONS), sorted(retention_profiles)]
    # Of a tool a verdict depends on its being there and being sensitive; whatever else changes is in force at once.
    parts.append(sorted([tool.tool_id, tool.sensitive] for tool in tools.values()))
    if shown is not None:
        parts.append({name: {each: sorted(keys) for each, keys in one.items()} for name, one in shown.items()})
    parts += sorted(([state.adapter.harness_id, _verdict_parts(state)] for state in states), key=lambda part: part[0])
    return "cat_" + hashlib.sha256(canonical_json(parts)).hexdigest()[:40]


def _verdict_parts(state: HarnessState) -> list[Any]:
    adapter = state.adapter
    descriptor = None if state.known is None else digest(state.known.document)
    profiles = {profile.id: digest(profile.model_dump(mode="json")) for profile in adapter.profiles.values()}
    return [adapter.enabled, bool(state.blocked), descriptor, profiles]
