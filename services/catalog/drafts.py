"""Validating a draft from end to end: the catalog's own verdict, then the adapter's, if it is there to ask."""

from __future__ import annotations

from typing import Protocol

from harness.adapter.v1.adapter_service_pb2 import EvaluateRequest, EvaluateResponse
from harness.common.v1.blueprint_pb2 import AgentBlueprint
from services.catalog.canonical import struct_of
from services.catalog.snapshot import PLACEMENTS, Snapshot
from services.catalog.validation import Verdict, evaluated, judge


class Harnesses(Protocol):
    """What validation needs of the adapter registry."""

    def snapshot(self) -> Snapshot:
        """What is known now."""
        ...

    async def learn(self, harness_id: str) -> None:
        """Looks once more at a harness that was never seen; bounded, and nothing happens if it stays away."""
        ...

    async def look_again(self) -> None:
        """Looks once more at every harness that was not looked at just now; bounded."""
        ...

    async def evaluate(self, harness_id: str, request: EvaluateRequest) -> EvaluateResponse | None:
        """The adapter's own verdict, None while it is away or does not answer in time; bounded."""
        ...


async def validate(draft: AgentBlueprint, harnesses: Harnesses, claimed_revision: str = "") -> Verdict:
    """The verdict under the current catalog. A harness has to be known, not up: without its adapter the descriptor decides. Where the client claims
    another catalog, every harness is looked at once more: another replica may have seen a change first.
    """
    await harnesses.learn(draft.harness.id)
    if claimed_revision and claimed_revision != harnesses.snapshot().revision:
        await harnesses.look_again()
    snapshot = harnesses.snapshot()
    verdict = judge(draft, snapshot)
    # An adapter is asked about what is right as far as we can tell: its author need not repeat our checks.
    if not verdict.valid or verdict.normalized is None:
        return verdict
    wanted = verdict.normalized.harness
    profile = snapshot.harnesses[wanted.id].adapter.profiles[wanted.profile_id]
    answer = await harnesses.evaluate(
        wanted.id,
        EvaluateRequest(
            blueprint=verdict.normalized,
            placement=PLACEMENTS[profile.placement],
            profile_settings=struct_of(profile.settings),
        ),
    )
    return verdict if answer is None else evaluated(verdict, answer, snapshot.tools)
