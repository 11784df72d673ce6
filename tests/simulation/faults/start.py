"""Rules of the section "Start"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="start-2-answered-unstored",
        rule="Start 2: Nobody is answered with a run that is not stored: whoever answers from a reservation inserts it first if it is missing.",
        edits=(
            Edit(
                "services.runs.starting",
                "            return await self._store(request, run_id, binding, plan, in_place=False)\n",
                "            return self._queued(request, run_id, binding, has_slot=True)\n",
            ),
        ),
        breaks=("I6",),
        level="rain",
        settings={"weights": {"repeat": 20.0}, ".slow": 0.3},
        seed=3,
    ),
    Fault(
        id="start-died-no-tombstone",
        rule="Start, Died after 1: after a grace, whoever meets the reservation inserts a tombstone under that run_id "
        "(so that a late insert fails), then releases.",
        edits=(
            Edit(
                "services.runs.starting",
                "            run = await self._canceller.bury(binding, run_id)\n"
                "            if run.is_stored_run:\n"
                "                return Occupant.WORKING  # stored after all\n",
                "            run = None\n",
            ),
        ),
        breaks=("I6",),
        level="crash",
        settings={".crashes": 1.5, ".slow": 0.2},
    ),
)
