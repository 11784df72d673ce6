"""How a case is declared: a function named for its rule."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.rules import BOTH, RULES_BY_ID, Rule

if TYPE_CHECKING:
    from conformance.kit import Kit

Work = Callable[["Kit"], Awaitable[None]]
# When a case is run: before all others, with them, after them, or as the very last.
FIRST, MIDDLE, AFTER, LAST = range(4)


@dataclass(frozen=True, slots=True)
class Case:
    """One look at one rule."""

    id: str
    rule: Rule
    title: str
    work: Work
    when: int
    placements: tuple[str, ...]


CASES: list[Case] = []


def case(rule_id: str, title: str, *, when: int = MIDDLE, placements: tuple[str, ...] = BOTH) -> Callable[[Work], Work]:
    """Declares a case of a rule. Its id is `R2.3/name`, from the function's name `r2_3_name`."""
    rule = RULES_BY_ID[rule_id]

    def declare(work: Work) -> Work:
        prefix = f"{rule_id.lower().replace('.', '_')}_"
        name = work.__name__
        if not name.startswith(prefix):
            raise ValueError(f"{name} is to be named {prefix}…")
        case_id = f"{rule_id}/{name.removeprefix(prefix).replace('_', '-')}"
        where = tuple(placement for placement in placements if placement in rule.placements)
        CASES.append(Case(case_id, rule, title, work, when, where))
        return work

    return declare
