"""What authors see of a harness: the sanitised descriptor, the operator's profiles, and how far the claims are shown (HarnessService; I18, I21)."""

from __future__ import annotations

from typing import Final

from harness.catalog.v1 import harness_pb2 as pb
from harness.common.v1.capability_pb2 import Capability
from services.catalog.capabilities import complete
from services.catalog.certification import Standing
from services.catalog.operator_file import ProfileEntry
from services.catalog.snapshot import PLACEMENTS, HarnessState
from services.common.capabilities import USABLE

NOT_SHOWN: Final = "Claimed, not shown."
"""What the explanation of a claim without evidence begins with."""
MAX_EXPLANATION: Final = 1_000


def public_harness(state: HarnessState, standing: Standing) -> pb.Harness:
    """The harness as authors see it: no address, setting, sandbox or incarnation (I18)."""
    harness = pb.Harness(
        harness_id=state.adapter.harness_id,
        display_name=state.adapter.harness_id,
        availability=state.availability,
        reason=state.reason,
        certification=standing.certification,
        certification_reason=standing.reason[:500],
        evidence_ids=standing.evidence_ids,
        profiles=[_public_profile(profile, standing) for profile in state.adapter.profiles.values()],
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
        harness.capabilities[key].CopyFrom(_with_evidence(capability, standing.evidence_of(key)))
    return harness


def _with_evidence(capability: Capability, evidence_id: str) -> Capability:
    """I21: the level stays what the adapter claims; what shows it, or that nothing does, is the catalog's to add."""
    told = Capability()
    told.CopyFrom(capability)
    told.evidence_id = evidence_id
    if not evidence_id and capability.level in USABLE:
        told.explanation = f"{NOT_SHOWN} {capability.explanation}".strip()[:MAX_EXPLANATION]
    return told


def _public_profile(profile: ProfileEntry, standing: Standing) -> pb.Profile:
    return pb.Profile(
        profile_id=profile.id,
        display_name=profile.display_name or profile.id,
        description=profile.description,
        placement=PLACEMENTS[profile.placement],
        model_aliases=profile.model_aliases,
        certification=standing.of_profile(profile.id),
        capability_evidence=standing.shown.get(profile.id, {}),
    )
