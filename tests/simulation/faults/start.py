"""Rules of the section "Start"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="start-1-one-cas",
        rule="Start 1: Reserve first: read the binding, then one CAS on it.",
        edits=(
            Edit(
                "services.sessions.store",
                '        rev: int = cast(Document, before)["rev"]\n',
                "        current = await self.binding(key)\n"
                '        rev: int = cast(Document, before if current is None else current[1])["rev"]\n',
            ),
        ),
        breaks=("I3", "I5", "I6", "I9", "I10", "I12", "I24", "I30", "queue"),
        level="stall",
        settings={"sessions": 2, "clients": 3, "conversations": 1, "weights": {"start_enqueue": 20.0}},
        seed=2,
    ),
    Fault(
        id="start-1-reserve-before-storing",
        rule="Start 1: Reserve first. (A run that is stored although nothing was reserved for it.)",
        edits=(
            Edit(
                "services.runs.starting",
                "            case Next.LOOK:\n                return await self._look(request, reservation.run_id, binding)\n",
                "            case Next.LOOK:\n                return await self._store(request, run_id, binding, plan)\n",
            ),
        ),
        breaks=("I5", "I9", "I6", "queue"),
        level="calm",
        settings={
            "clients": 3,
            "operations": 6,
            "weights": {"start_reject": 20.0, "clear": 10.0},
            "scripts": {"slow": 40.0},
        },
    ),
    Fault(
        id="start-1-conflict-looks-up",
        rule="Start 1: Before answering any conflict look the request key up in the runs, after the binding was read.",
        edits=(
            Edit(
                "services.runs.starting",
                "            known = await self.known(request)\n            if known is None:\n                raise\n",
                "            known = None\n            if known is None:\n                raise\n",
            ),
        ),
        breaks=("I6",),
        level="calm",
        settings={
            "clients": 3,
            "operations": 6,
            "weights": {"repeat": 20.0, "start_reject": 20.0},
            "scripts": {"slow": 10.0, "quick": 10.0},
        },
        seed=5,
    ),
    Fault(
        id="start-1-interrupt-looks-up",
        rule="Start 1: before the CAS of policy interrupt look the request key up in the runs, after the binding was read.",
        edits=(
            Edit(
                "services.runs.starting",
                '            if request.policy == "interrupt":\n',
                "            if False:\n",
            ),
        ),
        breaks=("I6",),
        level="calm",
        settings={
            "clients": 3,
            "operations": 6,
            "conversations": 1,
            "weights": {"repeat": 30.0, "start_interrupt": 20.0, "resume": -1.9},
            "scripts": {"ask": 40.0},
        },
        seed=2,
    ),
    Fault(
        id="start-1-resume-looks-up",
        rule="Start 1: before the CAS of a resume look the request key up in the runs, after the binding was read.",
        edits=(
            Edit(
                "services.runs.resuming",
                "            known = await self._starter.known(request)\n            if known is not None:\n"
                "                return known\n            resume.check",
                "            resume.check",
            ),
        ),
        breaks=("I6", "I24"),
        level="calm",
        settings={"clients": 3, "operations": 6, "weights": {"resume_misnamed": 30.0}, "scripts": {"ask": 40.0}},
    ),
    Fault(
        id="start-1-dismissed-with-the-slot",
        rule="Start 1: policy interrupt dismisses an interrupt, but only in the CAS that gives it the slot.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    changed["waiting"] = [place, *waiting] if asked.policy == INTERRUPT else [*waiting, place]\n',
                '    changed["waiting"] = [place, *waiting] if asked.policy == INTERRUPT else [*waiting, place]\n'
                "    if asked.policy == INTERRUPT:\n        interrupt.dismiss(changed)\n",
            ),
        ),
        breaks=("I24",),
        level="stall",
        settings={
            ".slow": 0.3,
            "clients": 3,
            "operations": 6,
            "conversations": 1,
            "weights": {"start_interrupt": 30.0},
            "scripts": {"ask": 40.0},
        },
        seed=6,
    ),
    Fault(
        id="start-1-supersedes-what-it-saw",
        rule="Start 1: put an intent (superseded) on the occupant this CAS saw and on waiting runs of the same policy.",
        edits=(
            Edit(
                "services.runs.starting",
                '        targets = [binding.active.run_id] if binding.HasField("active") else []\n',
                "        binding, _ = await self._engine.sessions.get(binding.binding_id)\n"
                '        targets = [binding.active.run_id] if binding.HasField("active") else []\n',
            ),
        ),
        breaks=("I12",),
        level="stall",
        settings={
            ".slow": 0.4,
            "clients": 3,
            "operations": 6,
            "conversations": 1,
            "weights": {"start_interrupt": 15.0, "start_enqueue": 20.0},
            "scripts": {"quick": 40.0},
        },
        seed=57,
    ),
    Fault(
        id="start-1-ended-occupant-helped-out",
        rule="Start 1: An occupant that already ended is helped out first; it is no reason for a conflict.",
        edits=(
            Edit(
                "services.runs.starting",
                "        state = await self.help_out(binding, occupant_id)\n        if state is Occupant.WORKING:\n            raise start.conflict",
                "        state = await self.help_out(binding, occupant_id)\n"
                "        if state in (Occupant.WORKING, Occupant.ENDED):\n            raise start.conflict",
            ),
        ),
        breaks=("I6",),
        level="crash",
        settings={
            ".crashes": 2.0,
            ".slow": 0.2,
            "clients": 3,
            "operations": 6,
            "weights": {"start_reject": 30.0},
            "scripts": {"quick": 20.0},
        },
        seed=14,
    ),
    Fault(
        id="start-1-unstored-occupant-helped-out",
        rule="Start 1: An occupant that was reserved and never stored is helped out first; it is no reason for a conflict.",
        edits=(
            Edit(
                "services.runs.starting",
                "        state = await self.help_out(binding, occupant_id)\n        if state is Occupant.WORKING:\n            raise start.conflict",
                "        state = await self.help_out(binding, occupant_id)\n        if state is not Occupant.ENDED:\n            raise start.conflict",
            ),
        ),
        breaks=("I6",),
        level="crash",
        settings={".crashes": 1.5, ".slow": 0.2, "clients": 3, "operations": 6, "weights": {"start_reject": 30.0}},
        seed=2,
    ),
    Fault(
        id="start-2-duplicate-answers-older",
        rule="Start 2: Duplicate request key (older than the reservation) → release the reservation, answer that run.",
        edits=(
            Edit(
                "services.runs.starting",
                "        known = await self.known(request)\n        if known is not None:\n            # Older",
                "        return run, False\n        known = await self.known(request)\n        if known is not None:\n            # Older",
            ),
        ),
        breaks=("I6",),
        level="calm",
        settings={"clients": 3, "operations": 6, "weights": {"repeat": 30.0}, "scripts": {"quick": 20.0}},
    ),
    Fault(
        id="start-2-duplicate-releases",
        rule="Start 2: Duplicate request key → release the reservation. (The sweep, and whoever meets it, would bury it: left out too.)",
        edits=(
            Edit(
                "services.runs.starting",
                "            await self._canceller.end_reservation(binding, run.run_id, CancelReason.CLIENT_REQUEST)\n        return known, False\n",
                "            pass\n        return known, False\n",
            ),
            Edit(
                "services.runs.start",
                "        return Occupant.ABANDONED if now - since >= grace else Occupant.UNSTORED\n",
                "        return Occupant.UNSTORED\n",
            ),
        ),
        breaks=("I9",),
        level="calm",
        settings={"clients": 2, "operations": 4, "weights": {"repeat": 30.0}, "scripts": {"quick": 20.0}},
    ),
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
