"""The page of mutants: `python -m tests.conformance.mutants.table` writes docs/reference/mutants.md."""

from pathlib import Path

from conformance.rules import RULES
from tests.conformance.mutants.every import MUTANTS, WITHOUT
from tests.conformance.mutants.seen import seen

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "mutants.md"
HEAD = """# Mutants

The certification kit is itself certified. For every numbered rule of the adapter contract there is a mutant: a correct adapter behind a wire that breaks
that one rule, before the same control plane that the kit plays for everybody. Each must be caught by a case named for its rule; the same adapter without a
mutant passes all of them. Written by `python -m tests.conformance.mutants.table`; a test holds this page against the mutants.

The last column has the other rules that find something in a whole certification of the mutant: one change on the wire may be a breach of several rules, and
may keep a case from getting as far as what it is about. It is a record of such certifications, made anew by `python -m tests.conformance.mutants.seen`.

| rule | what the mutant does | also seen by |
|---|---|---|
"""
# Of more rules than these, only the number is told beside them.
_NAMED = 12


def page() -> str:
    """The page as it must be."""
    lines, others = [HEAD], seen()
    for rule in RULES:
        mutant = MUTANTS.get(rule.id)
        told = f"None: {WITHOUT[rule.id]}" if mutant is None else mutant.breaks
        lines.append(f"| {rule.id} | {told} | {_also(others.get(rule.id))} |\n")
    return "".join(lines)


def _also(rules: list[str] | None) -> str:
    if rules is None:
        return "not looked at"
    more = f" and {len(rules) - _NAMED} more" if len(rules) > _NAMED else ""
    return f"{', '.join(rules[:_NAMED])}{more}" if rules else "no other"


if __name__ == "__main__":
    PAGE.write_text(page())
