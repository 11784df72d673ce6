"""The page of rules: `python -m conformance.rule_page` writes docs/reference/certification-rules.md."""

from pathlib import Path

from conformance.capability_keys import SECTIONS
from conformance.cases import CASES
from conformance.rules import BOTH, RULES, Rule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "certification-rules.md"
HEAD = """# Rules of certification

What [certification](certification.md) holds an endpoint to. A rule applies where all the capabilities it names are claimed, of those with "or" between them
one; a rule that names none applies to everybody. "Refused" is a gRPC status before the stream, with the reason of its `google.rpc.ErrorInfo` in quotes;
"the run fails" is its terminal event `run.failed`. Written by `python -m conformance.rule_page`; a test holds this page against the kit.
"""


def page() -> str:
    """The page as it must be."""
    lines = [HEAD]
    for number, name in SECTIONS.items():
        mine = [rule for rule in RULES if rule.section == number]
        lines.append(f"\n## {number} {name}\n\n")
        if not mine:
            lines.append("Nothing is looked at yet: a claim of this section is reported as not verified.\n")
            continue
        lines.append("| rule | text | applies with | cases |\n|---|---|---|---|\n")
        lines.extend(_row(rule) for rule in mine)
    return "".join(lines)


def _row(rule: Rule) -> str:
    needs = [f"`{key}`" for key in rule.capabilities]
    if rule.either:
        needs.append(" or ".join(f"`{key}`" for key in rule.either))
    if rule.placements != BOTH:
        needs.append(f"placement {rule.placements[0]}")
    cases = ", ".join(case.title for case in CASES if case.rule is rule)
    return f"| {rule.id} | {rule.text} | {', '.join(needs) or 'everybody'} | {cases} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
