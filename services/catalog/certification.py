"""How far the claims of a harness are shown: by evidence of exactly the versions that run, in every placement that its profiles use (I21).

Pure, from what is known of the harness now and the evidence at hand: a change of a version turns a certification back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from harness.catalog.v1 import harness_pb2 as pb
from harness.common.v1 import capability_pb2
from services.catalog.descriptor_policy import KnownDescriptor
from services.catalog.disclosure import safe_text
from services.catalog.evidence import Evidence, Placement, descriptor_digest
from services.catalog.evidence_folder import Shelf
from services.catalog.operator_file import ProfileEntry
from services.catalog.snapshot import HarnessState

_EXPERIMENTAL: Final = pb.CERTIFICATION_EXPERIMENTAL
_CERTIFIED: Final = pb.CERTIFICATION_CERTIFIED
# The placement that a certification has to have looked at. In the host's own process nothing separates an agent from its neighbours.
_SHOWN_BY: Final[Mapping[str, Placement | None]] = {
    "provider_managed": "adapter",
    "sandbox_pod": "worker",
    "in_process": None,
}
_LEVELS: Final[Mapping[int, str]] = {
    capability_pb2.CAPABILITY_LEVEL_NATIVE: "native",
    capability_pb2.CAPABILITY_LEVEL_EMULATED: "emulated",
}


@dataclass(frozen=True)
class Standing:
    """What a harness is worth by its evidence. `reason` is why it is not certified, empty if it is."""

    certification: pb.Certification.ValueType
    reason: str = ""
    evidence_ids: tuple[str, ...] = ()
    profiles: frozenset[str] = frozenset()
    """Profiles whose placement is certified."""
    shown: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By profile, the capability keys that were looked at in its placement and in order, each with the id of the evidence."""

    def of_profile(self, profile_id: str) -> pb.Certification.ValueType:
        """The standing of one profile."""
        if self.certification == pb.CERTIFICATION_BLOCKED:
            return self.certification
        return _CERTIFIED if profile_id in self.profiles else _EXPERIMENTAL

    def evidence_of(self, key: str) -> str:
        """The evidence of a capability whatever profile is chosen: empty unless it is shown in the placement of each (I21)."""
        ids = [shown.get(key, "") for shown in self.shown.values()]
        return ids[0] if ids and all(ids) else ""


def standing_of(state: HarnessState, shelf: Shelf) -> Standing:
    """Certified only if every profile that can be chosen is."""
    if state.blocked:
        return Standing(pb.CERTIFICATION_BLOCKED, state.blocked)
    known, harness_id = state.known, state.adapter.harness_id
    if known is None:
        return Standing(_EXPERIMENTAL, "The adapter was never seen, so no evidence can be compared with it.")
    own = [each for each in shelf.evidence if each.harness_id == harness_id]
    running = [each for each in own if _is_of_versions(each, known)]
    claimed = descriptor_digest(known.descriptor)
    # I21: of what these versions claim now, and of nothing else.
    matching = {each.placement: each for each in running if each.descriptor_digest == claimed}
    profiles = state.adapter.profiles.values()
    shown = {each.id: _shown(matching.get(_SHOWN_BY[each.placement] or ""), known) for each in profiles}
    if not matching:
        return Standing(_EXPERIMENTAL, _changed(known) if running else _lack(known, own, shelf), shown=shown)
    certified = frozenset(each.id for each in profiles if _SHOWN_BY[each.placement] in matching)
    ids = tuple(sorted(each.evidence_id for each in matching.values()))
    reason = _uncovered([each for each in profiles if each.id not in certified])
    return Standing(_EXPERIMENTAL if reason else _CERTIFIED, reason, ids, certified, shown)


def _is_of_versions(evidence: Evidence, known: KnownDescriptor) -> bool:
    said = known.descriptor
    return (evidence.adapter_version, evidence.sdk_name, evidence.sdk_version, evidence.contract_version) == (
        said.adapter_version,
        said.sdk_name,
        said.sdk_version,
        known.contract_version,
    )


def _shown(evidence: Evidence | None, known: KnownDescriptor) -> Mapping[str, str]:
    """Keys that were looked at and in order, at the level at which they are claimed."""
    if evidence is None:
        return {}
    shown = [key for key, level in evidence.certified.items() if _LEVELS.get(known.capabilities[key].level) == level]
    return dict.fromkeys(shown, evidence.evidence_id)


def _changed(known: KnownDescriptor) -> str:
    said = known.descriptor
    versions = _versions(said.adapter_version, said.sdk_name, said.sdk_version, known.contract_version)
    return (
        f"The evidence at hand is of {versions}, which runs, but what it says of its capabilities, their limits, its options or its state is not what was "
        "certified: certify it again, and give every change of these a version of its own."
    )


def _lack(known: KnownDescriptor, own: list[Evidence], shelf: Shelf) -> str:
    if own:
        newest, said = own[-1], known.descriptor
        kept = _versions(newest.adapter_version, newest.sdk_name, newest.sdk_version, newest.contract_version)
        running = _versions(said.adapter_version, said.sdk_name, said.sdk_version, known.contract_version)
        return f"The evidence at hand is of {kept}, but {running} is running: certify that."
    refused = next((why for name, why in shelf.refused if name == known.descriptor.harness_id), "")
    return f"Its evidence is refused: {refused}." if refused else "There is no evidence for this harness."


def _versions(adapter: str, sdk_name: str, sdk: str, contract: int) -> str:
    named = f"adapter {adapter}" + (f" with {sdk_name} {sdk}" if sdk_name or sdk else "") + f" and contract {contract}"
    return safe_text(named, "another version", 200)


def _uncovered(profiles: list[ProfileEntry]) -> str:
    never = [each.id for each in profiles if each.placement == "in_process"]
    if never:
        return f"Profiles that run in the host's own process are never certified: {', '.join(never)[:200]}."
    missing = [each.id for each in profiles]
    return f"No evidence covers the placement of these profiles: {', '.join(missing)[:200]}." if missing else ""
