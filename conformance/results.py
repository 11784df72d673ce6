"""What came of each case, and what follows from it for rules, capabilities and the whole (certification, Results)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conformance.capability_keys import CAPABILITY_KEYS, NOT_LOOKED_AT, SECTIONS
from conformance.cases.registry import Case
from conformance.kit import is_claimed
from conformance.plain import plain_text
from conformance.rules import RULES, Rule
from harness.adapter.v1 import descriptor_pb2

PASSED, FAILED, NOT_APPLICABLE, NOT_VERIFIED = "passed", "failed", "not_applicable", "not_verified"
CERTIFIED, INCOMPLETE, PARTIAL = "certified", "incomplete", "partial"
# The worst first: what a rule is, its cases being these.
_ORDER = (FAILED, NOT_VERIFIED, PASSED, NOT_APPLICABLE)
_LEVELS = {1: "native", 2: "emulated", 3: "unsupported", 4: "unavailable"}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one case."""

    case: Case
    result: str
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, int | float | str] = field(default_factory=dict[str, "int | float | str"])
    # Whether the adapter itself played what its provider was to say, in any turn of the case.
    rehearsed: bool = False


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What came of one rule."""

    rule: Rule
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class CapabilityResult:
    """What a claim is worth."""

    key: str
    claimed: str
    result: str
    reason: str
    rules: tuple[str, ...]


def level_of(descriptor: descriptor_pb2.Descriptor, key: str) -> str:
    """The claimed level of a key; one left out is unavailable."""
    return (
        _LEVELS.get(descriptor.capabilities[key].level, "unavailable")
        if key in descriptor.capabilities
        else "unavailable"
    )


def not_for(case: Case, descriptor: descriptor_pb2.Descriptor, placement: str) -> str:
    """Why a case does not apply; empty if it does."""
    if placement not in case.placements:
        return f"Looked at in the other placement only, this is {placement}."
    unclaimed = [key for key in case.rule.capabilities if not is_claimed(descriptor, key)]
    if not unclaimed and not any(is_claimed(descriptor, key) for key in case.rule.either):
        unclaimed = list(case.rule.either)
    if not unclaimed:
        return ""
    told = ", ".join(f"{key} is {level_of(descriptor, key)}" for key in unclaimed)
    explanation = descriptor.capabilities[unclaimed[0]].explanation if unclaimed[0] in descriptor.capabilities else ""
    return f"{told}{f': {explanation}' if explanation else ''}"[:400]


def rule_results(results: Sequence[CaseResult], placement: str) -> list[RuleResult]:
    """Every rule of the sections looked at, by the worst of its cases."""
    made: list[RuleResult] = []
    for rule in RULES:
        mine = [result for result in results if result.case.rule.id == rule.id]
        if not mine:
            continue
        # A case for one placement says nothing against a rule that another case looked at.
        looked = [result for result in mine if result.result != NOT_APPLICABLE] or mine
        worst = min(looked, key=lambda result: _ORDER.index(result.result))
        made.append(RuleResult(rule, worst.result, worst.reason))
    return made


def capability_results(
    rules: Sequence[RuleResult], descriptor: descriptor_pb2.Descriptor, placement: str
) -> list[CapabilityResult]:
    """All keys: certified only where a claim was looked at, and everything of it is in order."""
    return [_capability(key, rules, descriptor, placement) for key in CAPABILITY_KEYS]


def _capability(
    key: str, results: Sequence[RuleResult], descriptor: descriptor_pb2.Descriptor, placement: str
) -> CapabilityResult:
    claimed = level_of(descriptor, key)
    about = [result for result in results if key in result.rule.about]
    ids = tuple(result.rule.id for result in about if result.result in (PASSED, FAILED))
    if not is_claimed(descriptor, key):
        explanation = descriptor.capabilities[key].explanation if key in descriptor.capabilities else "Not stated."
        return CapabilityResult(key, claimed, NOT_APPLICABLE, plain_text(explanation[:400]), ())
    broken = next((result for result in about if result.result == FAILED), None)
    if broken is not None:
        return CapabilityResult(key, claimed, FAILED, f"{broken.rule.id}: {broken.reason}", ids)
    open_rule = next((result for result in about if result.result == NOT_VERIFIED), None)
    if open_rule is not None:
        return CapabilityResult(key, claimed, NOT_VERIFIED, f"{open_rule.rule.id}: {open_rule.reason}", ids)
    missing = [
        rule.id
        for rule in RULES
        if key in rule.about
        and placement in rule.placements
        and all(is_claimed(descriptor, other) for other in rule.capabilities)
        and rule.id not in ids
    ]
    if missing:
        return CapabilityResult(key, claimed, NOT_VERIFIED, f"Not looked at: {', '.join(missing)}.", ids)
    if not ids:
        return CapabilityResult(
            key, claimed, NOT_VERIFIED, NOT_LOOKED_AT.get(key, "Nothing of this kit looks at it."), ()
        )
    return CapabilityResult(key, claimed, CERTIFIED, "", ids)


def verdict(results: Sequence[CaseResult], rules: Sequence[RuleResult], sections: Iterable[int]) -> str:
    """The whole: certified, failed, incomplete or partial."""
    if any(result.result == FAILED for result in results):
        return FAILED
    if set(sections) != set(SECTIONS):
        return PARTIAL
    if any(result.result == NOT_VERIFIED and not result.rule.about for result in rules):
        return INCOMPLETE
    return CERTIFIED
