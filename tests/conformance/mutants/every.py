"""All mutants, by the rule they break, and the rules that have none, each with the reason."""

from tests.conformance.mutants import (
    section_01,
    section_02,
    section_03,
    section_05,
    section_06,
    section_07,
    section_08,
    section_11,
)
from tests.conformance.mutants.mutant import Mutant

SECTIONS = (
    section_01.SECTION,
    section_02.SECTION,
    section_03.SECTION,
    section_03.PARTIAL,
    section_05.SECTION,
    section_06.SECTION,
    section_07.SECTION,
    section_08.SECTION,
    section_08.SKILLS,
    section_11.SUBAGENTS,
    section_11.SECTION,
    section_11.LEAKS,
)
MUTANTS: dict[str, Mutant] = {mutant.rule_id: mutant for section in SECTIONS for mutant in section.mutants}
# Rules that the reference adapter cannot be made to break, and why.
WITHOUT: dict[str, str] = {}
