"""Rules of the sections "Sweep" and "Read"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="sweep-dead-lease",
        rule="Sweep: running with a dead lease.",
        edits=(Edit("services.runs.sweep", "        await self._take_over()\n", ""),),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 1.5},
    ),
    Fault(
        id="read-idle-watchers-poll",
        rule="Read: idle watchers poll the log slowly (the last notice may be lost).",
        edits=(
            Edit(
                "services.runs.live.hub",
                '        self._tasks.every("live_poll", self._poll_seconds, self.poll_once)\n',
                "        return\n",
            ),
        ),
        breaks=("I9",),
        level="rain",
        settings={".notice_lost": 0.6},
    ),
)
