"""What a harness says of the 38 capability keys, and what of it holds for one blueprint (contract, Capabilities; I21)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import CAPABILITY_LEVEL_UNAVAILABLE, CAPABILITY_LEVEL_UNSPECIFIED, Capability
from services.common.capabilities import KEYS, USABLE, needs, unmet
from services.common.errors import FieldIssue

NOT_COUNTED: Final = "Claimed, not shown: the operator counts with evidence alone."


def complete(claims: Mapping[str, Capability]) -> dict[str, Capability]:
    """Every key of the contract with its claim; one left out counts as unavailable, one the contract lacks is dropped.

    I21: a claim stays what the adapter says, and carries no evidence id: evidence is the catalog's to give, not the claimant's.
    """
    completed: dict[str, Capability] = {}
    for key in KEYS:
        capability = Capability()
        if key in claims:
            capability.CopyFrom(claims[key])
        if capability.level == CAPABILITY_LEVEL_UNSPECIFIED:
            capability.level = CAPABILITY_LEVEL_UNAVAILABLE
            capability.explanation = capability.explanation or "The adapter does not state it."
        capability.evidence_id = ""
        completed[key] = capability
    return completed


def only_shown(completed: Mapping[str, Capability], shown: Collection[str]) -> dict[str, Capability]:
    """What counts where the operator requires evidence: a claim of no key in `shown` is unavailable, and says why (I21)."""
    counting = dict(completed)
    for key, claim in completed.items():
        if claim.level in USABLE and key not in shown:
            counting[key] = Capability(level=CAPABILITY_LEVEL_UNAVAILABLE, explanation=NOT_COUNTED)
            counting[key].constraints.CopyFrom(claim.constraints)
    return counting


def in_effect(completed: Mapping[str, Capability], differing: Mapping[str, Capability]) -> dict[str, Capability]:
    """What holds for one blueprint: an evaluation may narrow what the descriptor claims, never add to it."""
    effective = dict(completed)
    for key, said in complete(differing).items():
        if key in differing and not (said.level in USABLE and effective[key].level not in USABLE):
            if not said.constraints.fields:
                said.constraints.CopyFrom(effective[key].constraints)
            effective[key] = said
    return effective


def capability_issues(
    blueprint: pb.AgentBlueprint, effective: Mapping[str, Capability], harness_id: str
) -> Iterator[FieldIssue]:
    """An issue at each field of a normalised blueprint that the harness cannot serve."""
    return unmet(needs(blueprint), effective, harness_id)
