"""Rules of the section "Take"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

BUSY = {"weights": {"start_enqueue": 20.0}, "scripts": {"slow": 30.0}}
STALLS = {".pauses": 3.0, **BUSY}

FAULTS = (
    Fault(
        id="take-1-cas",
        rule="Take 1: CAS on the run: same generation, status and renewals.",
        edits=(
            Edit(
                "services.runs.dispatch",
                "        written = await self._engine.store.put(run, claimed)\n",
                "        written, _ = await self._engine.store.change(run, lambda current: claimed)\n",
            ),
        ),
        breaks=("I6", "I7", "I9", "I10", "I11", "lease"),
        level="stall",
        settings=STALLS,
        seed=3,
    ),
    Fault(
        id="take-1-generation",
        rule="Take 1: free, expired or forced: generation + 1.",
        edits=(
            Edit(
                "services.runs.claim",
                "        run_generation=run.run_generation + 1,  # I10: everything of the old holder is now stale\n",
                "        run_generation=max(1, run.run_generation),\n",
            ),
        ),
        breaks=("I6", "I7", "I9", "I10", "I11", "I12", "I30"),
        level="crash",
        settings={".crashes": 1.5, **BUSY},
        seed=7,
    ),
    Fault(
        id="take-1-slot",
        rule="Take 1: free, and active.run_id mine. (Whoever offers a queued run looks at the slot as well: both are left out.)",
        edits=(
            Edit(
                "services.runs.dispatch",
                "        binding = await slot_of(self._engine, run)\n",
                "        binding, _ = await self._engine.sessions.get(run.binding_id)\n",
            ),
            Edit(
                "services.runs.sweep",
                "        if run.turn or self._dispatcher.has_in_line(run.run_id) or await slots.holder(run.binding_id) == run.run_id:\n",
                "        if True:\n",
            ),
        ),
        breaks=("I6",),
        level="calm",
        settings=BUSY,
        seed=2,
    ),
    Fault(
        id="take-1-lease",
        rule="Take 1: a lease is expired when generation and renewals did not change for TTL on the observer's clock.",
        edits=(
            Edit("services.runs.lease", "        return now - seen[2] >= self.ttl\n", "        return now > seen[2]\n"),
        ),
        breaks=("lease",),
        level="calm",
        settings=BUSY,
        seed=2,
    ),
    Fault(
        id="take-1-ending-left-alone",
        rule="Take 1: A forced take sets ending; an ending run is taken again only when its lease has expired.",
        edits=(
            Edit("services.runs.claim", "    if why is Why.FORCE and run.ending and run.holder:\n", "    if False:\n"),
        ),
        breaks=("lease", "I9"),
        level="stall",
        settings={
            ".pauses": 2.0,
            ".slow": 0.3,
            "weights": {"cancel": 20.0, "start_enqueue": 20.0},
            "scripts": {"hang": 20.0},
        },
        seed=21,
    ),
    Fault(
        id="take-1-forced-sets-ending",
        rule="Take 1: A forced take sets ending.",
        edits=(
            Edit(
                "services.runs.claim",
                "        ending=run.ending or why is Why.FORCE,\n",
                "        ending=run.ending,\n",
            ),
        ),
        breaks=("lease", "I9"),
        level="stall",
        settings={
            ".pauses": 2.0,
            ".slow": 0.3,
            "weights": {"cancel": 20.0, "start_enqueue": 20.0},
            "scripts": {"hang": 20.0},
        },
        seed=8,
    ),
    Fault(
        id="take-2-slot-claimed",
        rule="Take 2: Generation > 1: CAS on the binding, active.run_id mine and its generation lower → mine.",
        edits=(
            Edit(
                "services.runs.taking",
                "            binding = await self._claimed_slot()\n",
                "            binding = await slot_of(engine, self.run)\n",
            ),
        ),
        breaks=("I10", "I12", "I30", "I9"),
        level="stall",
        settings={".pauses": 3.0, "weights": {"start_enqueue": 20.0}, "scripts": {"slow": 30.0, "session": 10.0}},
        seed=33,
    ),
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
    Fault(
        id="take-3-seal",
        rule="Take 3: Generation > 1: seal the log: insert a seal at the next index.",
        edits=(
            Edit(
                "services.runs.sealing",
                '        outcome = await log.append(_seal(run_id, run_generation, nonce, tail), b"")\n',
                "        return tail\n",
            ),
        ),
        breaks=("I10", "I7"),
        level="crash",
        settings={".crashes": 1.5, **BUSY},
    ),
    Fault(
        id="take-3-terminal-met",
        rule="Take 3: The tail read first, and every segment met: a terminal → conclude.",
        edits=(
            Edit(
                "services.runs.sealing",
                "        if tail.terminal_status:  # a terminal ends the run, whoever wrote it (I9)\n            return tail\n",
                "",
            ),
        ),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 2.0, ".slow": 0.2, "weights": {"start_enqueue": 20.0}},
        seed=12,
    ),
    Fault(
        id="take-3-younger-met",
        rule="Take 3: The tail read first, and every segment met: a younger generation → stop. (An older taker learns from its renewal "
        "that it is one, mostly before: left out too.)",
        edits=(
            Edit("services.runs.taking", "        self._lost.set()\n", "        return\n"),
            Edit(
                "services.runs.sealing",
                "        if tail.run_generation > run_generation:  # I10: we are the old holder\n",
                "        if False:\n",
            ),
        ),
        breaks=("I10",),
        level="stall",
        settings={
            ".pauses": 1.5,
            ".slow": 0.4,
            "runs": 3,
            "conversations": 2,
            "clients": 1,
            "seconds": 20.0,
            "weights": {"cancel_active": 30.0, "start_enqueue": 30.0},
            "scripts": {"hang": 40.0},
        },
        seed=2,
    ),
    Fault(
        id="take-4-terminal-in-log",
        rule="Take 4: Terminal in the log → conclude.",
        edits=(
            Edit(
                "services.runs.executor",
                "            if found.terminal_status:  # Take 4: the terminal alone ends a run, what follows it may be repeated\n",
                "            if False:\n",
            ),
        ),
        breaks=("I7", "I9", "I11", "defect"),
        level="crash",
        settings={".crashes": 2.0, ".slow": 0.2, "weights": {"start_enqueue": 20.0}},
        seed=12,
    ),
    Fault(
        id="take-4-intent",
        rule="Take 4: Intent on the record → conclude with it, issue nothing. (Said where the run is taken and where it is issued.)",
        edits=(
            Edit(
                "services.runs.executor",
                "        if held.run.intent is not None:  # Take 4: an intent on the record is carried out, nothing is issued\n",
                "        if False:\n",
            ),
            Edit(
                "services.runs.executor",
                "                if run.intent is not None:  # Take 4: an intent on the record, nothing is issued\n",
                "                if False:\n",
            ),
        ),
        breaks=("I12",),
        level="stall",
        settings={".slow": 0.3, "weights": {"cancel": 25.0, "start_enqueue": 20.0}},
        seed=3,
    ),
    Fault(
        id="take-4-head-names-run",
        rule="Take 4: Head already names this run → conclude with the outcome stored in the head.",
        edits=(
            Edit(
                "services.runs.executor",
                "        if (committed := committed_by(held.binding, held.run_id)) is not None:  # Take 4: the head names this run\n"
                "            return committed\n",
                "",
            ),
        ),
        breaks=("I30", "I24"),
        level="crash",
        settings={
            ".crashes": 1.0,
            ".host_crashes": 0.7,
            ".slow": 0.8,
            "conversations": 3,
            "clients": 2,
            "operations": 3,
            "seconds": 5.0,
            "weights": {"start_enqueue": 20.0},
            "scripts": {"quick": 40.0},
        },
        seed=12,
    ),
)
