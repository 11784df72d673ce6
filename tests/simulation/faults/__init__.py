"""Planted faults: every rule of the run protocol that is marked there, left out of the product's source while it is loaded, one at a time.

A fault that no schedule catches says that the simulation does not test its rule, or that the rule is not needed; a fault whose piece of source is not there
any more says that it has to be looked at again. The product itself has no switches for any of this.

Nothing here may import the product: a fault is planted before its module is loaded, in an interpreter of its own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Final

SECTIONS: Final = ("start", "take", "issue", "end", "cancel_clear_resume", "tools", "sweep_read")


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one module. `old` is exact source text, whole lines best, that occurs exactly once; `new` stands in its place."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule left out, and how it shows.

    `rule` quotes the run protocol: section, number, the sentence. `breaks` are the invariants of which one must be reported: `I3`, `I5` to
    `I12`, `I24`, `I25`, `I30`, `queue`, `deadline`, `lease` (taken while its holder renewed it), `defect` (an exception nobody expects, a
    failure for which there is no reason). `level` and `settings` (fields of `weather.Scenario`, those of its level with a dot before them) make
    the schedules in which it shows likely; `seed` is the first one tried, one that is known to catch it, and `within` how many from there on
    may be played until one does.
    """

    id: str
    rule: str
    edits: tuple[Edit, ...]
    breaks: tuple[str, ...]
    level: str = "storm"
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 1
    within: int = 400


def all_faults() -> dict[str, Fault]:
    """Every fault by its id. Errors: `ValueError` when two have one id."""
    found: dict[str, Fault] = {}
    for section in SECTIONS:
        for fault in importlib.import_module(f"tests.simulation.faults.{section}").FAULTS:
            if fault.id in found:
                raise ValueError(f"two faults are called {fault.id}")
            found[fault.id] = fault
    return found
