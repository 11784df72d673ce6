"""The kit is held to its word: each rule has a mutant, each mutant is caught by a case of its rule, and nothing is caught without a mutant."""

import asyncio
import signal
import subprocess
import sys

import pytest

from conformance.certification import Options, certify
from conformance.results import FAILED, PASSED
from conformance.rules import RULES, RULES_BY_ID
from tests.conformance.mutants.every import MUTANTS, WITHOUT
from tests.conformance.mutants.judge import judge
from tests.conformance.mutants.seen import seen
from tests.conformance.mutants.table import PAGE, page
from tests.conformance.mutants.wire import Mutation


def test_every_rule_has_a_mutant_or_a_reason():
    assert set(MUTANTS) | set(WITHOUT) == set(RULES_BY_ID)
    assert not set(MUTANTS) & set(WITHOUT)


def test_every_mutant_has_been_before_all_cases():
    assert set(seen()) == set(MUTANTS), "run `python -m tests.conformance.mutants.seen` with the rules of new mutants"
    assert all(set(others) <= set(RULES_BY_ID) - {rule_id} for rule_id, others in seen().items())


def test_the_page_of_mutants_is_current():
    assert PAGE.read_text() == page(), "run `python -m tests.conformance.mutants.table`"


@pytest.mark.parametrize("rule_id", [rule.id for rule in RULES if rule.id in MUTANTS])
async def test_a_mutant_is_caught_by_a_case_of_its_rule_and_the_correct_adapter_is_not(rule_id):
    mutant = MUTANTS[rule_id]
    rules = (*mutant.after, rule_id)
    correct = await judge(rules, Mutation(), worker=mutant.worker)
    assert not correct.found
    assert correct.passed
    broken = await judge(rules, mutant.make(), worker=mutant.worker, waits=not mutant.never)
    assert broken.found, f"{mutant.breaks} Nobody noticed: {broken.passed}"
    assert {case_id.partition("/")[0] for case_id in broken.found} == {rule_id}


def test_a_mutant_is_served_for_a_certification_by_hand():
    command = [sys.executable, "-m", "tests.conformance.mutants"]
    served = subprocess.Popen([*command, "R2.1"], stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        address = served.stdout.readline().strip()
        found = asyncio.run(certify(Options(address, sections=(2,)), lambda _: None))
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=60)
    assert served.returncode == 0
    assert found.verdict == FAILED
    assert found.document["rules"]["R2.1"]["result"] == FAILED
    assert found.document["rules"]["R2.2"]["result"] == PASSED
    unknown = subprocess.run([*command, "R99.1"], capture_output=True, text=True, timeout=60, check=False)
    assert (unknown.returncode, "R2.1" in unknown.stderr) == (2, True)
