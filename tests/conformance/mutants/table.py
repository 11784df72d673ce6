"""The page of mutants: `python -m tests.conformance.mutants.table` writes docs/reference/mutants.md."""

from pathlib import Path

from conformance.rules import RULES
from tests.conformance.mutants.every import MUTANTS, WITHOUT

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "mutants.md"
HEAD = """# Mutants

The certification kit is itself certified. For every numbered rule of the adapter contract there is a mutant: a correct adapter behind a wire that breaks
that one rule, before the same control plane that the kit plays for everybody. Each must be caught by a case named for its rule; the same adapter without a
mutant passes all of them. Written by `python -m tests.conformance.mutants.table`; a test holds this page against the mutants.

| rule | what the mutant does |
|---|---|
"""


def page() -> str:
    """The page as it must be."""
    lines = [HEAD]
    for rule in RULES:
        mutant = MUTANTS.get(rule.id)
        told = f"None: {WITHOUT[rule.id]}" if mutant is None else mutant.breaks
        lines.append(f"| {rule.id} | {told} |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
