"""Rules of the section "Take"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="take-2-old-generation-commits",
        rule="Take 2: From here the old holder can commit no head, no interrupt, no session id.",
        edits=(
            Edit(
                "services.sessions.runtime_fence",
                '    if occupant["run_generation"] != fence.run_generation:\n',
                "    if False:\n",
            ),
        ),
        breaks=("I10", "I12"),
        level="stall",
        settings={
            ".pauses": 3.0,
            "scripts": {"slow": 30.0, "session": 10.0},
            "weights": {"start_enqueue": 20.0},
        },
        seed=33,
    ),
)
