"""Approvals of a harness that asks about no calls of its own: what holds for it is looked at through portable tools, and its mutants are caught there too."""

import pytest

from conformance.certification import Certifier, Options
from conformance.drivers.reference import ReferenceDriver
from conformance.failure import CannotExpressError
from conformance.results import FAILED
from conformance.scenario import AskApproval, Steps
from tests.conformance.mutants.every import MUTANTS
from tests.conformance.mutants.judge import cases_of
from tests.conformance.mutants.wire import Mutation, Wire


class NoQuestions(ReferenceDriver):
    """As for a provider that asks nobody about its own calls."""

    name = "no-questions"

    def message(self, *turns: Steps) -> str:
        if any(isinstance(step, AskApproval) for steps in turns for step in steps):
            raise CannotExpressError("The provider asks about no calls of its own.")
        return super().message(*turns)


async def results(mutation: Mutation) -> dict[str, str]:
    """What came of the cases of R6.8, by their ids: their reason where they failed."""
    async with Wire(mutation, False, ("interrupt.tool_approval",)) as wire:
        driver = f"{NoQuestions.__module__}:{NoQuestions.__name__}"
        async with Certifier(Options(wire.address, driver=driver)) as certifier:
            made = [await certifier.run(case) for case in cases_of(["R6.8"], "adapter")]
    return {each.case.id: each.reason if each.result == FAILED else each.result for each in made}


async def test_a_correct_harness_passes():
    assert await results(Mutation()) == {"R6.8/approvals": "passed", "R6.8/decisions": "passed"}


@pytest.mark.parametrize(
    ("mutant", "case", "found"),
    [
        ("R3.7", "R6.8/approvals", "The calls came as"),
        ("R3.10", "R6.8/decisions", "The call came to"),
        ("R6.8", "R6.8/decisions", "The model was not told the reason"),
    ],
)
async def test_a_harness_that_does_something_else_does_not(mutant: str, case: str, found: str):
    assert (await results(MUTANTS[mutant].make()))[case].startswith(found)
