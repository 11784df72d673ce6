"""Rules of the section "End", with "Release"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="end-closed-before-head",
        rule="End: earlier events appended → closed by CAS on the run, if the agent has tools (no call passes any more) → head.",
        edits=(Edit("services.runs.executor", "        if plan.has_tools:\n", "        if False:\n"),),
        breaks=("I12",),
        level="calm",
        settings={"conversations": 3},
        seed=3,
    ),
    Fault(
        id="end-head-before-terminal",
        rule="End: head with its outcome (and the interrupt, same CAS) committed on the binding → terminal segment.",
        edits=(
            Edit(
                "services.runs.committing",
                "        revision = await patiently(\n"
                "            engine.clock,\n"
                "            engine.settings.commit_seconds,\n"
                "            lambda: engine.sessions.commit_head(fence, pending, outcome, unrecorded, interrupt),\n"
                "        )\n",
                "        revision = 1\n"
                '        engine.tasks.spawn("commit", engine.sessions.commit_head(fence, pending, outcome, unrecorded, interrupt))\n',
            ),
        ),
        breaks=("I30", "I24"),
        level="calm",
    ),
    Fault(
        id="end-head-keeps-outcome",
        rule="End: head with its outcome committed on the binding.",
        edits=(
            Edit(
                "services.runs.committing",
                "commit_head(fence, pending, outcome, unrecorded, interrupt)",
                "commit_head(fence, pending, payload_pb2.RunCompleted(), unrecorded, interrupt)",
            ),
        ),
        breaks=("I30",),
        level="crash",
        settings={".crashes": 4.0, "conversations": 3, "clients": 3, "operations": 6, "scripts": {"quick": 30.0}},
    ),
    Fault(
        id="end-head-and-interrupt-in-one-write",
        rule="End: head with its outcome (and the interrupt, same CAS).",
        edits=(
            Edit(
                "services.runs.committing",
                "commit_head(fence, pending, outcome, unrecorded, interrupt)",
                "commit_head(fence, pending, outcome, unrecorded, None)",
            ),
        ),
        breaks=("I24",),
        level="calm",
        settings={"scripts": {"ask": 20.0}},
    ),
    Fault(
        id="end-head-under-active-run",
        rule="End: head committed on the binding under epoch, active run and generation. (The turn is the second line of defence.)",
        edits=(
            Edit("services.sessions.runtime_fence", '        or occupant["run_id"] != fence.run_id\n', ""),
            Edit("services.sessions.runtime_fence", '        or document["turn"] != fence.turn\n', ""),
        ),
        breaks=("I6", "I10", "I12"),
        level="rain",
        settings={
            ".message_late": 0.25,
            ".message_doubled": 0.5,
            "conversations": 2,
            "clients": 3,
            "operations": 6,
            "scripts": {"quick": 20.0, "session": 20.0},
            "weights": {"start_enqueue": 20.0, "cancel": 20.0, "start_interrupt": 10.0},
        },
        seed=8,
    ),
    Fault(
        id="end-terminal-before-release",
        rule="End: terminal segment → release the slot → run status.",
        edits=(
            Edit(
                "services.runs.executor",
                "        held.packer.end(terminal, status.value, self._engine.stamp())\n",
                "        await self._settle(status, terminal.payload.run_failed.code)\n"
                "        held.packer.end(terminal, status.value, self._engine.stamp())\n",
            ),
        ),
        breaks=("I6",),
        level="calm",
    ),
    Fault(
        id="end-engine-intent-first",
        rule="End: the engine decides: intent by CAS first, so that no tool call or state write passes after it.",
        edits=(
            Edit(
                "services.runs.executor",
                "        await held.change(lambda run: replace(run, intent=wanted) if run.intent is None else None)\n"
                "        decided = held.run.intent or wanted\n",
                "        decided = held.run.intent or wanted\n",
            ),
        ),
        breaks=("I12",),
        level="crash",
        settings={".host_crashes": 0.6, "conversations": 3, "scripts": {"slow": 20.0}},
        seed=3,
    ),
    Fault(
        id="end-cancel-intent-first",
        rule="End: cancel, supersede: intent by CAS first. (Whoever is signalled writes it, too; both are left out.)",
        edits=(
            Edit(
                "services.runs.cancelling",
                "                replace(current, intent=intent, updated_at=self._engine.now())\n"
                "                if current.is_open and current.intent is None  # I12: the first decision stands\n"
                "                else None\n",
                "                None\n",
            ),
            Edit(
                "services.runs.executor",
                "        await held.change(lambda run: replace(run, intent=wanted) if run.intent is None else None)\n"
                "        decided = held.run.intent or wanted\n",
                "        decided = held.run.intent or wanted\n",
            ),
        ),
        breaks=("I12",),
        level="calm",
        settings={"weights": {"cancel": 10.0}, "scripts": {"slow": 10.0, "hang": 10.0}},
    ),
    Fault(
        id="end-runtime-told-to-stop",
        rule="End: if it was issued, CancelRun(run_id, generation) to that incarnation, bounded in time.",
        edits=(
            Edit(
                "services.runs.executor",
                "            return await self._engine.runtimes.cancel(await held.host(issued), fence, reason, seconds)\n",
                "            return error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED\n",
            ),
        ),
        breaks=("I12", "I6"),
        level="calm",
        settings={"weights": {"cancel": 10.0}, "scripts": {"slow": 10.0, "hang": 10.0}},
    ),
    Fault(
        id="end-cancel-bounded-in-time",
        rule="End: CancelRun to that incarnation, bounded in time.",
        edits=(
            Edit(
                "services.runs.executor",
                "            return await self._engine.runtimes.cancel(await held.host(issued), fence, reason, seconds)\n",
                "            while True:\n"
                "                try:\n"
                "                    return await self._engine.runtimes.cancel(await held.host(issued), fence, reason, seconds)\n"
                "                except HarnessError:\n"
                "                    await asyncio.sleep(0.1)\n",
            ),
        ),
        breaks=("deadline", "I9"),
        level="crash",
        settings={".host_crashes": 0.8, "weights": {"cancel": 10.0}, "scripts": {"slow": 10.0, "hang": 10.0}},
        seed=2,
    ),
    Fault(
        id="end-runtime-remembers-cancel",
        rule="End: the runtime remembers it even for a run it does not know.",
        edits=(
            Edit(
                "adapters.sdk.host.registry",
                "            if (fence.binding_id, fence.run_id) in self._cancelled:  # I12\n",
                "            if False:\n",
            ),
        ),
        breaks=("I12",),
        level="stall",
        settings={".message_late": 0.2, "weights": {"cancel": 20.0, "start_interrupt": 10.0}},
        seed=23,
    ),
    Fault(
        id="end-release-only-mine",
        rule="Release: only if the slot is still mine.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if occupant is None or occupant["run_id"] != run_id:\n        # Release: only if the slot is still mine.\n',
                "    if occupant is None:\n        # Release: only if the slot is still mine.\n",
            ),
        ),
        breaks=("I6",),
        level="rain",
        settings={"weights": {"cancel": 10.0, "start_enqueue": 20.0}, "conversations": 1, "clients": 3},
    ),
    Fault(
        id="end-nobody-moves-up-while-pending",
        rule="Release: the next of waiting moves up in the same CAS, unless an interrupt is pending.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if waiting and document["status"] == ACTIVE and not interrupt.is_pending(changed):\n',
                '    if waiting and document["status"] == ACTIVE:\n',
            ),
        ),
        breaks=("I24",),
        level="calm",
        settings={"conversations": 1, "clients": 3, "weights": {"start_enqueue": 20.0}, "scripts": {"ask": 20.0}},
    ),
    Fault(
        id="end-interrupt-policy-dismisses-there",
        rule="Release: one of policy interrupt dismisses it there.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if interrupt.is_pending(changed) and waiting and waiting[0]["policy"] == INTERRUPT and document["status"] == ACTIVE:\n',
                "    if False:\n",
            ),
        ),
        breaks=("queue",),
        level="calm",
        settings={"conversations": 1, "clients": 3, "weights": {"start_interrupt": 10.0}, "scripts": {"ask": 30.0}},
        seed=10,
    ),
    Fault(
        id="end-next-moves-up-in-order",
        rule="Release: the next of waiting moves up in the same CAS (turn + 1).",
        edits=(
            Edit(
                "services.sessions.turn",
                '        changed["waiting"] = waiting[1:]\n',
                '        changed["waiting"] = waiting[:-1]\n',
            ),
            Edit(
                "services.sessions.turn",
                "        return _given_to(changed, waiting[0], None, now), True\n",
                "        return _given_to(changed, waiting[-1], None, now), True\n",
            ),
        ),
        breaks=("queue",),
        level="calm",
        settings={"conversations": 1, "clients": 3, "operations": 6, "weights": {"start_enqueue": 20.0}},
    ),
    Fault(
        id="end-next-moves-up",
        rule="Release: the next of waiting moves up in the same CAS.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if waiting and document["status"] == ACTIVE and not interrupt.is_pending(changed):\n',
                "    if False:\n",
            ),
        ),
        breaks=("queue",),
        level="calm",
        settings={"conversations": 1, "clients": 3, "weights": {"start_enqueue": 20.0}},
    ),
    Fault(
        id="end-turn-rises",
        rule="Release: the next of waiting moves up in the same CAS (turn + 1).",
        edits=(Edit("services.sessions.turn", '    changed["turn"] = document["turn"] + 1\n', ""),),
        breaks=("I6",),
        level="calm",
    ),
    Fault(
        id="end-terminal-alone-ends",
        rule="End: the terminal segment alone ends a run. What follows it may be repeated by anyone: sweeper, blocked start, reader. "
        "(Whoever takes a run whose terminal is in the log, and whoever meets it in the slot: both are left out.)",
        edits=(
            Edit(
                "services.runs.executor",
                "                await self._settle(Status(found.terminal_status), found.error_code)\n",
                "                return\n",
            ),
            Edit(
                "services.runs.starting",
                "        has_terminal = run is not None and bool((await tail_of(self._engine.log, run_id)).terminal_status)\n",
                "        has_terminal = False\n",
            ),
        ),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 3.0, "scripts": {"quick": 30.0}},
        seed=6,
    ),
)
