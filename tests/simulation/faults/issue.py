"""Rules of the section "Issue and follow"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="issue-3-duplicate-stops",
        rule="Issue and follow 3: Duplicate index: own nonce → it was applied; anything else → stop at once, write nothing more anywhere.",
        edits=(
            Edit(
                "services.runs.appending",
                "            if isinstance(outcome, DuplicateSegment) and outcome.existing.nonce != self._nonce:\n",
                "            if False:\n",
            ),
        ),
        breaks=("I7", "I8", "I9", "I10", "defect"),
        level="stall",
        settings={
            ".pauses": 1.0,
            "seconds": 8.0,
            "conversations": 3,
            "clients": 2,
            "weights": {"start_enqueue": 20.0},
            "scripts": {"slow": 30.0, "tool": 15.0},
        },
        seed=16,
    ),
)
