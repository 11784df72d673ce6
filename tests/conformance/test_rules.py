"""The rules and cases themselves: complete, named, placed, documented."""

from pathlib import Path

import pytest

from adapters.sdk.capabilities import CAPABILITY_KEYS as KEYS_OF_THE_SDK
from conformance import rule_page
from conformance.capability_keys import CAPABILITY_KEYS, NOT_LOOKED_AT, SECTIONS
from conformance.cases import CASES
from conformance.cases.registry import case
from conformance.rules import RULES

KIT = Path(rule_page.__file__).parent


def test_the_keys_are_the_contracts():
    assert CAPABILITY_KEYS == KEYS_OF_THE_SDK


def test_every_rule_has_a_case_in_each_of_its_placements():
    looked_at = {(each.rule.id, placement) for each in CASES for placement in each.placements}
    assert looked_at == {(rule.id, placement) for rule in RULES for placement in rule.placements}


def test_a_key_has_a_rule_or_a_sentence_on_why_it_has_none():
    about = {key for rule in RULES for key in rule.capabilities}
    assert set(NOT_LOOKED_AT) == set(CAPABILITY_KEYS) - about
    assert all(reason.endswith(".") for reason in NOT_LOOKED_AT.values())


def test_rules_are_numbered_in_order_within_the_twelve_sections():
    seen: dict[int, list[int]] = {}
    for rule in RULES:
        seen.setdefault(rule.section, []).append(int(rule.id.partition(".")[2]))
        assert set(rule.capabilities) <= set(CAPABILITY_KEYS), rule.id
    assert list(seen) == sorted(seen)
    assert set(seen) <= set(SECTIONS)
    assert len(SECTIONS) == 12
    for numbers in seen.values():
        assert numbers == list(range(1, len(numbers) + 1))


def test_case_ids_are_unique():
    ids = [each.id for each in CASES]
    assert len(ids) == len(set(ids))


def test_a_case_is_named_for_its_rule():
    async def r2_2_something(kit) -> None:
        """Nothing."""

    with pytest.raises(ValueError, match="r2_3_"):
        case("R2.3", "x")(r2_2_something)
    with pytest.raises(KeyError):
        case("R99.1", "x")(r2_2_something)


def test_cases_stand_in_the_module_of_their_section():
    for each in CASES:
        assert each.work.__module__ == f"conformance.cases.section_{each.rule.section:02d}", each.id


def test_the_page_of_rules_is_current():
    assert rule_page.PAGE.read_text() == rule_page.page(), "run `python -m conformance.rule_page`"


def test_cases_know_no_driver():
    for path in (KIT / "cases").glob("*.py"):
        assert "conformance.drivers" not in path.read_text(), path
