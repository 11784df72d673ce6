"""Every planted fault is caught, and by nothing but itself: without it the same schedule holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import all_faults
from tests.simulation.faults.planting import changed, source_of
from tests.simulation.faults.rules import RULES
from tests.simulation.world import play

FAULTS = all_faults()


@pytest.mark.parametrize("section", RULES)
def test_every_rule_of_a_section_has_its_fault(section: str) -> None:
    for rule, names in RULES[section].items():
        assert names, f"{section} {rule}: nothing shows that it is needed"
        for name in names:
            assert name in FAULTS, f"{section} {rule}: there is no fault {name}"
            assert FAULTS[name].rule.startswith(section), f"{name} is about another rule: {FAULTS[name].rule}"


def test_every_fault_of_a_listed_section_leaves_out_one_of_its_rules() -> None:
    listed = [name for rules in RULES.values() for names in rules.values() for name in names]
    assert len(set(listed)) == len(listed)
    about = {name for name, fault in FAULTS.items() if fault.rule.startswith(tuple(RULES))}
    assert about == set(listed)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_still_has_its_place(name: str) -> None:
    fault = FAULTS[name]
    for module in {edit.module for edit in fault.edits}:
        edits = [edit for edit in fault.edits if edit.module == module]
        compile(changed(source_of(module), edits), module, "exec")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str) -> None:
    fault = FAULTS[name]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.faults", "--fault", name, "--json"],
        env=os.environ,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["caught"], f"{fault.rule}: {found}"
    outcome = play(found["seed"], fault.level, fault.settings)
    assert outcome.violation is None, f"the product itself breaks it: {outcome.violation}"
