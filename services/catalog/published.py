"""What authors see of a harness: the sanitised descriptor, the operator's profiles, and how far the claims are shown (HarnessService; I18, I21)."""

from __future__ import annotations

from harness.catalog.v1 import harness_pb2 as pb
from services.catalog.capabilities import complete
from services.catalog.certification import Standing
from services.catalog.operator_file import ProfileEntry
from services.catalog.snapshot import PLACEMENTS, HarnessState


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
        harness.capabilities[key].CopyFrom(capability)
        # I21: a claim stays what the adapter says; what shows it is the catalog's to add.
        harness.capabilities[key].evidence_id = standing.capabilities.get(key, "")
    return harness


def _public_profile(profile: ProfileEntry, standing: Standing) -> pb.Profile:
    return pb.Profile(
        profile_id=profile.id,
        display_name=profile.display_name or profile.id,
        description=profile.description,
        placement=PLACEMENTS[profile.placement],
        model_aliases=profile.model_aliases,
        certification=standing.of_profile(profile.id),
    )
