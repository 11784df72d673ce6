"""Rules of the section "Cancel, clear, resume", the deadline among them."""

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
    Fault(
        id="cancel-takes-by-force",
        rule="Cancel: not within cancel_grace, or queued, or unowned → take by force and write it.",
        edits=(Edit("services.runs.cancelling", "            await self._dispatcher.end_by_force(run, intent)\n", ""),),
        breaks=("I9", "deadline"),
        level="calm",
        settings={
            "conversations": 1,
            "clients": 3,
            "weights": {"cancel": 20.0, "start_enqueue": 20.0},
            "scripts": {"hang": 10.0},
        },
        seed=2,
    ),
    Fault(
        id="cancel-reasons-differ",
        rule="Cancel: reasons differ: client, cleared, deadline, shutdown, superseded; the first decision stands.",
        edits=(
            Edit(
                "services.runs.cancelling",
                "                if current.is_open and current.intent is None  # I12: the first decision stands\n",
                "                if current.is_open and current.intent != intent\n",
            ),
        ),
        breaks=("I12",),
        level="calm",
        settings={
            "weights": {"cancel": 10.0, "clear": 5.0, "start_interrupt": 10.0},
            "scripts": {"slow": 10.0, "hang": 10.0},
        },
        seed=3,
    ),
    Fault(
        id="deadline-survives-takeover",
        rule="States: deadline_at is set once, at the first issue, and survives takeovers.",
        edits=(
            Edit(
                "services.runs.executor",
                "            issued = held.run.issued\n            self._watch_deadline()\n",
                "            issued = held.run.issued\n"
                "            later = self._engine.now() + 60_000\n"
                "            await held.change(lambda run: replace(run, deadline_at=later))\n"
                "            self._watch_deadline()\n",
            ),
        ),
        breaks=("deadline",),
        level="crash",
        settings={".crashes": 1.5, "scripts": {"slow": 20.0, "hang": 10.0}},
        seed=4,
    ),
    Fault(
        id="deadline-set-once",
        rule="States: deadline_at is set once, at the first issue.",
        edits=(
            Edit(
                "services.runs.executor",
                "            deadline_at = held.run.deadline_at or now + plan.run_seconds * 1000  # set once, at the first issue\n",
                "            deadline_at = now + plan.run_seconds * 1000\n",
            ),
        ),
        breaks=("deadline",),
        level="crash",
        settings={".host_crashes": 1.0, "scripts": {"slow": 20.0}},
        seed=7,
    ),
    Fault(
        id="deadline-ends-the-run",
        rule="States: a deadline ends a run as run.cancelled, reason deadline. (The runtime, which is told of it, is the second line of defence.)",
        edits=(
            Edit(
                "services.runs.executor",
                "            self._deadline = asyncio.get_running_loop().call_later(seconds, self._held.halt, Halt.DEADLINE)\n",
                "            self._deadline = None\n",
            ),
            Edit(
                "adapters.sdk.host.run",
                "        self._background.spawn(self.stop(payload_pb2.CANCEL_REASON_DEADLINE, self._limits.cancel_grace_seconds))\n",
                "        return\n",
            ),
        ),
        breaks=("deadline",),
        level="calm",
        settings={"scripts": {"hang": 20.0}},
        seed=3,
    ),
    Fault(
        id="deadline-watched-after-takeover",
        rule="States: deadline_at survives takeovers: whoever takes the run ends it then. (The runtime's own timer is left out, too.)",
        edits=(
            Edit(
                "services.runs.executor",
                "            issued = held.run.issued\n            self._watch_deadline()\n",
                "            issued = held.run.issued\n",
            ),
            Edit(
                "adapters.sdk.host.run",
                "        self._background.spawn(self.stop(payload_pb2.CANCEL_REASON_DEADLINE, self._limits.cancel_grace_seconds))\n",
                "        return\n",
            ),
        ),
        breaks=("deadline",),
        level="crash",
        settings={".crashes": 2.0, ".host_crashes": 0.0, "scripts": {"hang": 30.0}},
    ),
    Fault(
        id="clear-closing-first",
        rule="Clear: binding closing first → active and every waiting run … → one CAS.",
        edits=(
            Edit("services.sessions.epoch", '    changed["status"] = CLOSING\n', ""),
            Edit("services.sessions.epoch", '    if document["status"] != CLOSING:\n', "    if False:\n"),
        ),
        breaks=("I5",),
        level="calm",
        settings={"weights": {"clear": 10.0}},
    ),
    Fault(
        id="clear-closing-refuses-reservations",
        rule="Clear: binding closing first (refuses reservations).",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if document["status"] == CLOSING:\n        # I5: no run',
                "    if False:\n        # I5: no run",
            ),
        ),
        breaks=("I5",),
        level="calm",
        settings={"conversations": 1, "clients": 3, "weights": {"clear": 10.0}, "scripts": {"hang": 10.0}},
        seed=3,
    ),
    Fault(
        id="clear-closing-nobody-moves-up",
        rule="Clear: binding closing first (refuses reservations): nobody moves up in it.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    if waiting and document["status"] == ACTIVE and not interrupt.is_pending(changed):\n',
                "    if waiting and not interrupt.is_pending(changed):\n",
            ),
        ),
        breaks=("I5",),
        level="rain",
        settings={
            ".slow": 0.3,
            "conversations": 2,
            "clients": 3,
            "operations": 6,
            "weights": {"clear": 15.0, "start_enqueue": 40.0},
            "scripts": {"slow": 10.0, "quick": 20.0},
        },
    ),
    Fault(
        id="clear-closing-refuses-heads",
        rule="Clear: binding closing first (refuses heads).",
        edits=(
            Edit(
                "services.sessions.head",
                "    refuse_closing(document)\n    _refuse_uncertain(document)\n",
                "    _refuse_uncertain(document)\n",
            ),
        ),
        breaks=("I5",),
        level="rain",
        settings={
            ".slow": 0.3,
            "conversations": 3,
            "weights": {"clear": 30.0},
            "scripts": {"slow": 20.0, "quick": 20.0},
        },
        seed=7,
    ),
    Fault(
        id="clear-closing-refuses-facade-writes",
        rule="Clear: binding closing first (refuses facade writes).",
        edits=(
            Edit(
                "services.sessions.runtime_fence",
                '    refuse_closing(document)\n    if document["native_session_id"] == native_session_id:\n',
                '    if document["native_session_id"] == native_session_id:\n',
            ),
        ),
        breaks=("I5",),
        level="rain",
        settings={".slow": 0.3, "conversations": 3, "weights": {"clear": 30.0}, "scripts": {"session": 50.0}},
        seed=2,
    ),
    Fault(
        id="clear-ends-every-waiting-run",
        rule="Clear: active and every waiting run: tombstone if never stored, else intent and forced end.",
        edits=(
            Edit(
                "services.runs.clearing",
                "        run_ids = [waiting.run_id for waiting in binding.waiting]\n",
                "        run_ids = []\n",
            ),
        ),
        breaks=("I9", "I5"),
        level="calm",
        settings={
            "conversations": 1,
            "clients": 3,
            "weights": {"clear": 10.0, "start_enqueue": 20.0},
            "scripts": {"hang": 10.0},
        },
    ),
    Fault(
        id="clear-waits-for-the-line",
        rule="Clear: every waiting run is ended, then one CAS. (The CAS itself refuses, too; both are left out.)",
        edits=(
            Edit(
                "services.runs.clearing",
                "        run_ids = [waiting.run_id for waiting in binding.waiting]\n",
                "        run_ids = []\n",
            ),
            Edit("services.sessions.epoch", '    if document["waiting"]:\n', "    if False:\n"),
        ),
        breaks=("I5",),
        level="calm",
        settings={
            "conversations": 1,
            "clients": 3,
            "weights": {"clear": 10.0, "start_enqueue": 20.0},
            "scripts": {"hang": 10.0},
        },
    ),
    Fault(
        id="clear-tombstones-the-unstored",
        rule="Clear: active and every waiting run: tombstone if never stored.",
        edits=(
            Edit(
                "services.runs.cancelling",
                "            run = await self.bury(binding, run_id)\n        if run.is_stored_run and run.is_open:\n",
                "            return await self.give_back(binding.binding_id, run_id, None)\n        if run.is_stored_run and run.is_open:\n",
            ),
        ),
        breaks=("I5", "I6"),
        level="rain",
        settings={
            ".slow": 0.4,
            "conversations": 3,
            "clients": 3,
            "operations": 6,
            "weights": {"clear": 20.0, "start_enqueue": 10.0},
        },
        seed=2,
    ),
    Fault(
        id="clear-ends-stored-runs",
        rule="Clear: active and every waiting run: tombstone if never stored, else intent and forced end.",
        edits=(
            Edit(
                "services.runs.cancelling",
                "        if run.is_stored_run and run.is_open:\n            await self.cancel(run, reason)\n",
                "",
            ),
        ),
        breaks=("I6", "I5", "queue"),
        level="calm",
        settings={"conversations": 1, "clients": 3, "weights": {"clear": 10.0}, "scripts": {"hang": 10.0}},
    ),
    Fault(
        id="clear-archives",
        rule="Clear: one CAS: archive, epoch + 1, active, nothing carried over.",
        edits=(Edit("services.sessions.bindings", "            await self._store.archive(closing)\n", ""),),
        breaks=("I5",),
        level="calm",
        settings={"weights": {"clear": 10.0}},
    ),
    Fault(
        id="clear-carries-nothing-over",
        rule="Clear: one CAS: archive, epoch + 1, active, nothing carried over.",
        edits=(
            Edit(
                "services.sessions.epoch",
                '    return new_epoch(conversation, next_binding_id, closed["epoch"] + 1, closed["turn"])\n',
                '    following = new_epoch(conversation, next_binding_id, closed["epoch"] + 1, closed["turn"])\n'
                '    following["head"] = closed["head"]\n'
                "    return following\n",
            ),
        ),
        breaks=("I5",),
        level="calm",
        settings={"weights": {"clear": 10.0}},
    ),
    Fault(
        id="clear-whoever-meets-closing-helps",
        rule="Clear: whoever meets closing helps.",
        edits=(
            Edit(
                "services.runs.starting",
                "                await self._clearer.help(binding)\n                return None\n",
                "                return None\n",
            ),
        ),
        breaks=("I5",),
        level="rain",
        settings={
            ".slow": 0.3,
            "conversations": 2,
            "clients": 3,
            "operations": 6,
            "weights": {"clear": 15.0},
            "scripts": {"hang": 10.0},
        },
    ),
    Fault(
        id="resume-consumes-in-the-reservation",
        rule="Resume: a start whose reservation consumes the interrupt and takes the slot in the same CAS.",
        edits=(Edit("services.sessions.turn", "    interrupt.consume(changed, answer, asked.run_id)\n", ""),),
        breaks=("I24",),
        level="calm",
        settings={"weights": {"resume": 20.0}, "scripts": {"ask": 30.0}},
    ),
    Fault(
        id="resume-same-decision-same-run",
        rule="Resume: the same decision again → that run, another → conflict.",
        edits=(
            Edit(
                "services.sessions.interrupt",
                '    same = interrupt["decision_digest"] == answer.decision_digest\n',
                "    same = True\n",
            ),
            Edit(
                "services.runs.start",
                "    if answers != bool(request.decision) or (answers and binding.interrupt.decision_digest != request.digest):\n",
                "    if False:\n",
            ),
        ),
        breaks=("I24",),
        level="rain",
        settings={
            ".slow": 0.3,
            "conversations": 1,
            "clients": 3,
            "operations": 6,
            "weights": {"resume": 30.0, "resume_again": 20.0},
            "scripts": {"ask": 50.0},
        },
        seed=3,
    ),
    Fault(
        id="resume-unissued-gives-back",
        rule="Resume: a resume that ended without having been issued gives the interrupt back in its release CAS, revision + 1.",
        edits=(Edit("services.sessions.interrupt", "        if issued:\n", "        if True:\n"),),
        breaks=("I24",),
        level="crash",
        settings={
            ".crashes": 2.0,
            ".slow": 0.2,
            "max_active": 1,
            "conversations": 3,
            "clients": 3,
            "operations": 6,
            "weights": {"resume": 40.0, "cancel": 20.0},
            "scripts": {"ask": 50.0},
        },
        seed=19,
    ),
    Fault(
        id="resume-issued-keeps",
        rule="Resume: a resume that ended without having been issued gives the interrupt back, and no other.",
        edits=(Edit("services.sessions.interrupt", "        if issued:\n", "        if False:\n"),),
        breaks=("I24",),
        level="calm",
        settings={"weights": {"resume": 20.0}, "scripts": {"ask": 30.0}},
    ),
    Fault(
        id="resume-given-back-revision",
        rule="Resume: gives the interrupt back in its release CAS, revision + 1.",
        edits=(Edit("services.sessions.interrupt", '                "revision": interrupt["revision"] + 1,\n', ""),),
        breaks=("I24",),
        level="crash",
        settings={
            ".crashes": 2.0,
            ".host_crashes": 1.0,
            "conversations": 3,
            "clients": 3,
            "operations": 6,
            "weights": {"resume": 40.0, "cancel": 10.0},
            "scripts": {"ask": 50.0},
        },
        seed=3,
    ),
    Fault(
        id="resume-shown-after-terminal",
        rule="Resume: an interrupt is shown only once its run's terminal is in the log.",
        edits=(
            Edit(
                "services.runs.queries",
                "        if run is not None and (await as_seen(self._engine.log, run)).status is not Status.INTERRUPTED:\n",
                "        if False:\n",
            ),
        ),
        breaks=("I24",),
        level="rain",
        settings={".slow": 0.3, "clients": 3, "operations": 6, "weights": {"resume": 40.0}, "scripts": {"ask": 50.0}},
        seed=20,
    ),
    Fault(
        id="queue-first-come-first",
        rule="Start 1: enqueue appends to waiting.",
        edits=(
            Edit(
                "services.sessions.turn",
                " if asked.policy == INTERRUPT else [*waiting, place]\n",
                " if asked.policy == INTERRUPT else [place, *waiting]\n",
            ),
        ),
        breaks=("queue",),
        level="calm",
        settings={
            "conversations": 1,
            "clients": 3,
            "operations": 6,
            "weights": {"start_enqueue": 20.0},
            "scripts": {"slow": 20.0},
        },
    ),
    Fault(
        id="queue-interrupt-first",
        rule="Start 1: interrupt goes before all others in waiting.",
        edits=(
            Edit(
                "services.sessions.turn",
                '    changed["waiting"] = [place, *waiting] if asked.policy == INTERRUPT else [*waiting, place]\n',
                '    changed["waiting"] = [*waiting, place]\n',
            ),
        ),
        breaks=("queue",),
        level="calm",
        settings={
            "conversations": 1,
            "clients": 3,
            "operations": 6,
            "weights": {"start_enqueue": 20.0, "start_interrupt": 10.0},
            "scripts": {"slow": 20.0},
        },
    ),
)
