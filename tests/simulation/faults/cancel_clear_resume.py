"""Rules of the section "Cancel, clear, resume"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="cancel-answer-needs-terminal",
        rule="Cancel: intent by CAS, signal; answer only when a terminal is in the log.",
        edits=(
            Edit(
                "services.runs.cancelling",
                "        run = await self.ask(run, intent)\n        give_up_at",
                "        run = await self.ask(run, intent)\n        return run\n        give_up_at",
            ),
        ),
        breaks=("I12", "I6", "I5"),
        level="rain",
        settings={"weights": {"cancel": 10.0}},
        seed=2,
    ),
)
