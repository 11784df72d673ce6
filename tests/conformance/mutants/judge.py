"""Runs the cases of one rule against a mutant, as a certification does, and says which of them found something."""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from google.protobuf import json_format

from conformance.cases import CASES, Case
from conformance.certification import Certifier, Options
from conformance.kit import Kit
from conformance.results import FAILED, PASSED
from conformance.rules import ADAPTER, RULES_BY_ID, WORKER
from tests.conformance.mutants.wire import Mutation, Wire

# What the kit says of a case that met its own bound, or a defect of its own: that catches no mutant.
NO_FINDING = ("The case did not come to an end", "The case met something unexpected", "A call ended with")


@dataclass
class Verdict:
    """What came of each case, by its id: what it found, or that it passed."""

    found: dict[str, str] = field(default_factory=dict[str, str])
    passed: list[str] = field(default_factory=list[str])


def cases_of(rules: Sequence[str], placement: str) -> list[Case]:
    """The cases of these rules, in the order in which a certification runs them."""
    return sorted(
        (case for case in CASES if case.rule.id in rules and placement in case.placements), key=lambda case: case.when
    )


async def judge(rules: Sequence[str], mutation: Mutation, *, worker: bool = False, waits: bool = True) -> Verdict:
    """Runs the cases of these rules in one certification. `waits`: what nothing signals is waited for, as always; otherwise it is looked at twice."""
    verdict = Verdict()
    placement = WORKER if worker else ADAPTER
    cases = cases_of(rules, placement)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        claims = tuple(key for rule_id in rules for key in RULES_BY_ID[rule_id].capabilities)
        async with Wire(mutation, worker, claims) as wire:
            file.write(json_format.MessageToJson(wire.descriptor))
            file.flush()
            options = Options(wire.address, placement, descriptor=file.name if worker else "")
            async with Certifier(options) as certifier:
                for case in cases:
                    with patch.object(Kit, "until", Kit.until if waits else looked_at_twice):
                        result = await certifier.run(case)
                    if result.result == FAILED:
                        assert not result.reason.startswith(NO_FINDING), f"{case.id}: {result.reason}"
                        verdict.found[case.id] = result.reason
                    elif result.result == PASSED:
                        verdict.passed.append(case.id)
    return verdict


async def looked_at_twice(_: Kit, condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """In the place of Kit.until, for what never comes."""
    return await condition() or await condition()
