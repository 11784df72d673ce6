"""Rules of the section "Issue and follow", and of `turn` in "Three documents"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

BUSY = {"weights": {"start_enqueue": 20.0}, "scripts": {"slow": 30.0}}

FAULTS = (
    Fault(
        id="turn-lower-refused",
        rule="Three documents: turn orders the runs of a binding: StartRun carries it; a runtime refuses a lower one.",
        edits=(
            Edit(
                "adapters.sdk.host.runtime",
                "        if fence.turn <= self._turn:  # I6: a turn belongs to one run, and an older one never works beside a younger\n",
                "        if False:\n",
            ),
        ),
        breaks=("I6",),
        level="calm",
        settings={
            ".runtime_late": 0.4,
            ".runtime_lost": 0.3,
            "hosts": 1,
            "conversations": 1,
            "clients": 2,
            "operations": 6,
            "seconds": 5.0,
            "weights": {"start_interrupt": 40.0},
            "scripts": {"hang": 20.0},
        },
        seed=21,
    ),
    Fault(
        id="turn-higher-ends-older",
        rule="Three documents: a higher turn ends whatever older turn still works there. (The runtime's lock is a second line: both are left out.)",
        edits=(
            Edit(
                "adapters.sdk.host.runtime", "        if older is not None and older.working:\n", "        if False:\n"
            ),
            Edit(
                "adapters.sdk.host.runtime",
                "        await self._slot.lock.acquire()\n        self._holds = True\n",
                "",
            ),
        ),
        breaks=("I6",),
        level="rain",
        settings={
            ".message_lost": 0.2,
            "weights": {"cancel_active": 20.0, "start_enqueue": 20.0, "start_interrupt": 10.0},
            "scripts": {"hang": 20.0},
        },
        seed=12,
    ),
    Fault(
        id="issue-1-recorded-first",
        rule="Issue and follow 1: The runtime is resolved first; issued by CAS before the first StartRun leaves.",
        edits=(
            Edit(
                "services.runs.executor",
                "            await held.change(decide)\n            if held.run.issued != issued:\n",
                "            held.run = replace(held.run, issued=issued, deadline_at=deadline_at)\n            if False:\n",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY,
    ),
    Fault(
        id="issue-1-that-incarnation-only",
        rule="Issue and follow 1: StartRun goes to that incarnation only. (Said by the host's check of the call, and where the engine "
        "starts again what was not heard of.)",
        edits=(
            Edit(
                "adapters.sdk.host.registry",
                "        if incarnation != self.incarnation:  # I11: what was issued to a dead process is not started by its successor\n",
                "        if False:\n",
            ),
            Edit(
                "adapters.sdk.host.registry",
                "        if incarnation != self.incarnation:\n            raise refusal.incarnation_mismatch()\n        run = self.find(fence).find(fence)\n",
                "        run = self.find(fence).find(fence)\n",
            ),
            Edit(
                "services.runs.following",
                "        if make and await placing.make_in_host(engine, run, binding, plan, issued) != issued.incarnation:\n",
                "        if make and not await placing.make_in_host(engine, run, binding, plan, issued):\n",
            ),
        ),
        breaks=("I11",),
        level="crash",
        settings={".host_crashes": 1.5, ".crashes": 0.5, **BUSY},
    ),
    Fault(
        id="issue-1-never-started-again",
        rule="Issue and follow 1: Issued to a runtime that is gone → never started again.",
        edits=(
            Edit(
                "services.runs.executor",
                "        if held.run.issued is not None and held.run.run_generation > 1:\n",
                "        if False:\n",
            ),
        ),
        breaks=("I11",),
        level="crash",
        settings={".crashes": 1.5, **BUSY},
        seed=3,
    ),
    Fault(
        id="issue-1-side-effects-possible",
        rule="Issue and follow 1: Issued to a runtime that is gone → end truthfully, side effects possible.",
        edits=(
            Edit(
                "services.runs.ending",
                "    if not issued:\n        return error_pb2.SIDE_EFFECT_STATUS_NONE\n    if reported ",
                "    if not issued or not reported:\n        return error_pb2.SIDE_EFFECT_STATUS_NONE\n    if reported ",
            ),
        ),
        breaks=("I11",),
        level="crash",
        settings={".host_crashes": 1.5, **BUSY},
        seed=3,
    ),
    Fault(
        id="issue-2-one-append-in-flight",
        rule="Issue and follow 2: One append in flight per run.",
        edits=(
            Edit(
                "services.runs.appending",
                "        if self._in_flight is not None or self._timer is not None:\n",
                "        if self._timer is not None:\n",
            ),
            Edit(
                "services.runs.appending",
                "        if self._in_flight is None and self._failure is None and not self._stopped:\n",
                "        if self._failure is None and not self._stopped:\n",
            ),
        ),
        breaks=("I7", "I8", "I9", "defect"),
        level="stall",
        settings={
            ".pauses": 0.0,
            ".slow": 0.4,
            "conversations": 1,
            "clients": 1,
            "weights": {"start_enqueue": 20.0},
            "scripts": {"slow": 5.0, "tool": 20.0, "quick": 20.0},
        },
        seed=2,
    ),
    Fault(
        id="issue-2-through-offset",
        rule="Issue and follow 2: the segment records through_offset.",
        edits=(
            Edit(
                "services.runs.segmenting",
                "            through_offset=self._offset if self._pause is None else self._pause.after_offset,\n",
                "            through_offset=0,\n",
            ),
        ),
        breaks=("I7", "I24", "defect"),
        level="crash",
        settings={".crashes": 1.5, **BUSY},
        seed=10,
    ),
    Fault(
        id="issue-2-offset-in-one-segment",
        rule="Issue and follow 2: an offset never straddles two segments.",
        edits=(
            Edit(
                "services.runs.segmenting",
                "                add(\n                    version=VOCABULARY_VERSION,\n",
                "                if len(accepted) > 1 and event is not accepted[0]:\n"
                "                    self._sequence = sequence - 1\n"
                "                    self._close_segment()\n"
                "                    add = self._events.events.add\n"
                "                add(\n                    version=VOCABULARY_VERSION,\n",
            ),
        ),
        breaks=("I7",),
        level="crash",
        settings={".crashes": 3.0, ".slow": 0.3, "weights": {"start_enqueue": 20.0}, "scripts": {"big": 60.0}},
        seed=25,
    ),
    Fault(
        id="issue-2-attach-from-durable",
        rule="Issue and follow 2: Attach asks from the last durable offset.",
        edits=(
            Edit(
                "services.runs.following",
                "            after_offset=self._held.appender.durable_offset,\n",
                "            after_offset=self._held.appender.durable_offset + 1,\n",
            ),
        ),
        breaks=("I7", "I9", "defect"),
        level="crash",
        settings={".crashes": 1.5, **BUSY},
        seed=7,
    ),
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
    Fault(
        id="issue-4-publish-after-append",
        rule="Issue and follow 4: Publish after the append.",
        edits=(
            Edit(
                "services.runs.appending",
                "        await self._append_durably(header, packed.packed)\n",
                "        early = Segment(self._run_id, header.index, header.first_sequence, header.last_sequence, False, packed.packed)\n"
                "        self._publisher.published(self._run_id, early)\n"
                "        await self._append_durably(header, packed.packed)\n",
            ),
        ),
        breaks=("I8",),
        level="stall",
        settings={".slow": 0.3, **BUSY},
    ),
    Fault(
        id="issue-4-acknowledge-after-append",
        rule="Issue and follow 4: Acknowledge after the append.",
        edits=(
            Edit(
                "services.runs.following",
                "        due = appender.durable_offset - self._acknowledged\n",
                "        due = self._held.packer.offset - self._acknowledged\n",
            ),
            Edit(
                "services.runs.following",
                "        held, offset, size = self._held, self._held.appender.durable_offset, self._held.appender.durable_bytes\n",
                "        held, offset, size = self._held, self._held.packer.offset, self._held.appender.durable_bytes\n",
            ),
        ),
        breaks=("I8",),
        level="stall",
        settings={".slow": 0.4, **BUSY},
        seed=3,
    ),
    Fault(
        id="issue-5-renew-by-cas",
        rule="Issue and follow 5: Renew by CAS on generation and running.",
        edits=(
            Edit(
                "services.runs.held",
                "            if run.run_generation != self.run.run_generation or run.status is not Status.RUNNING:\n                raise Fenced(",
                "            if False:\n                raise Fenced(",
            ),
        ),
        breaks=("I7", "I9", "I10", "I11", "I12", "I30", "defect", "lease"),
        level="stall",
        settings={".pauses": 3.0, **BUSY},
        seed=12,
    ),
    Fault(
        id="issue-5-failing-means-stop",
        rule="Issue and follow 5: Renew by CAS on generation and running; failing means stop.",
        edits=(
            Edit(
                "services.runs.held",
                "        except Fenced:\n            self.halt(Halt.LOST)\n            return\n",
                "        except Fenced:\n            return\n",
            ),
        ),
        breaks=("I10",),
        level="stall",
        settings={
            ".pauses": 1.0,
            ".slow": 0.05,
            "runs": 3,
            "conversations": 3,
            "clients": 2,
            "seconds": 8.0,
            "weights": {"start_enqueue": 20.0},
            "scripts": {"slow": 40.0},
        },
        seed=21,
    ),
)
