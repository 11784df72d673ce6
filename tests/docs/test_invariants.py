"""The page of invariants knows all of them, and what it names as shown is tested where it says."""

import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "invariants.md"
ROWS = re.findall(r"^\| I(\d+) \| (.*?) \| (.*?) ?\| (.*?) ?\|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_every_invariant_has_its_row():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 36))


@pytest.mark.parametrize(("number", "meaning", "decided", "shown"), ROWS, ids=[f"I{row[0]}" for row in ROWS])
def test_what_is_named_is_there(number, meaning, decided, shown):
    modules, tests = (re.findall(r"`([^`]+)`", cell) for cell in (decided, shown))
    assert all((ROOT / module).is_file() for module in modules)
    for test in tests:
        assert f"def test_i{number}_" in (ROOT / test).read_text("utf-8"), f"{test} has no test_i{number}_…"
    assert tests or "**Later" in meaning or "**In part**" in meaning
