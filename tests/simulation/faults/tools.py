"""Rules of the section "Tools"."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.faults import Edit, Fault

BUSY: Final[dict[str, Any]] = {
    "agents": ("tools",),
    "conversations": 2,
    "clients": 2,
    "operations": 6,
    "scripts": {"call": 40.0},
}
"""Runs that call tools all the time."""
TAKEN_OVER: Final[dict[str, Any]] = BUSY | {
    ".crashes": 2.0,
    ".pauses": 1.5,
    "runs": 3,
    "conversations": 3,
    "operations": 3,
    "scripts": {"call": 300.0},
}
"""The same while their executors die and stall all the time."""
ASKING: Final[dict[str, Any]] = BUSY | {"scripts": {"approve": 60.0}, "weights": {"resume": 30.0}}
"""Runs whose calls wait, and people who decide."""
BROKER: Final = "services.runs.tools.broker"
FLIGHT: Final = "services.runs.tools.flight"
ACCEPTANCE: Final = "services.runs.tools.acceptance"

FAULTS: Final = (
    Fault(
        id="tools-accepted-before-the-end",
        rule="Tools: accepted by a CAS on the run (no intent, not closed).",
        edits=(
            Edit(
                ACCEPTANCE,
                "    return run.status is Status.RUNNING and run.intent is None and not run.closed\n",
                "    return run.status is Status.RUNNING\n",
            ),
        ),
        breaks=("I12",),
        level="calm",
        settings=BUSY | {"weights": {"cancel": 40.0}},
        seed=2,
    ),
    Fault(
        id="tools-accepted-under-its-generation",
        rule="Tools: accepted by a CAS on the run (generation current).",
        edits=(Edit(ACCEPTANCE, "    if run.run_generation != fence.run_generation:\n", "    if False:\n"),),
        breaks=("I10",),
        level="crash",
        settings=TAKEN_OVER,
    ),
    Fault(
        id="tools-accepted-before-recorded",
        rule="Tools: accepted by a CAS on the run, then a unique insert.",
        edits=(
            Edit(
                BROKER,
                "        try:\n"
                "            run, _ = await self._runs.change(\n"
                "                run, lambda current: acceptance.accept(current, fence, mark, limit, self._now())\n"
                "            )\n"
                "        except KnownCall:\n"
                "            return await self._what_became(run, tool_call_id, tool_id, given)\n",
                "",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY,
    ),
    Fault(
        id="tools-recorded-before-invoked",
        rule="Tools: then a unique insert, both before invoking.",
        edits=(
            Edit(
                BROKER,
                "        with self._noting(begun):\n"
                "            inserted = await self._calls.insert(begun)\n"
                "        if inserted is not None:\n"
                "            self._fly(call, inserted, call.given)\n",
                "        self._fly(call, begun, call.given)\n        await self._calls.insert(begun)\n",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY,
    ),
    Fault(
        id="tools-unique-insert",
        rule="Tools: then a unique insert (binding, epoch, tool_call_id).",
        edits=(
            Edit(
                BROKER,
                "        if inserted is not None:\n            self._fly(call, inserted, call.given)\n",
                "        self._fly(call, inserted or record.started(new, self._holder, now), call.given)\n",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY,
        seed=4,
    ),
    Fault(
        id="tools-other-digest",
        rule="Tools: with the argument digest: another digest → conflict.",
        edits=(
            Edit(
                BROKER,
                "            if not found.fits(call.digest):\n                found = await self._with_edit(call, found)\n",
                "",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY,
    ),
    Fault(
        id="tools-outcome-never-changes",
        rule="Tools: an outcome once told never changes. (The broker writes what it has whatever the record says by now.)",
        edits=(
            Edit(
                FLIGHT,
                "            if written is not None:\n                audit.ended(written)\n            return\n",
                "            if written is not None:\n"
                "                audit.ended(written)\n"
                "                return\n"
                "            before = await self._calls.get(before.key) or before\n",
            ),
            Edit(
                FLIGHT,
                "                return  # another broker has the call, or it was given up: what the record says is told\n",
                "                await asyncio.wait({work})\n                held = begun\n",
            ),
        ),
        breaks=("I11",),
        level="stall",
        settings=BUSY | {".pauses": 2.0},
        seed=88,
    ),
    Fault(
        id="tools-gone-is-lost",
        rule="Tools: still started and its broker gone → CAS to lost, then error, unless the tool is declared idempotent.",
        edits=(
            Edit(
                BROKER,
                "        if call.grant is None or not call.grant.descriptor.idempotent or given is None:\n",
                "        if call.grant is None or given is None:\n",
            ),
        ),
        breaks=("I11",),
        level="crash",
        settings=BUSY | {".crashes": 2.0},
    ),
    Fault(
        id="tools-lost-by-cas",
        rule="Tools: still started and its broker gone → CAS to lost, then error. (Told without being written.)",
        edits=(
            Edit(
                BROKER,
                "            if found.ended is not None:\n",
                "            if found.state is State.STARTED and self._flights.under_way(call.key) is None and self._watch.is_gone(\n"
                "                found, self._clock.monotonic()\n"
                "            ):\n"
                "                return record.UNKNOWN\n"
                "            if found.ended is not None:\n",
            ),
        ),
        breaks=("I11",),
        level="crash",
        settings=BUSY | {".crashes": 2.0},
    ),
    Fault(
        id="tools-refused-is-possible",
        rule="Tools: a refused call whose id is already in tool_calls is answered possible, not refused.",
        edits=(
            Edit(
                ACCEPTANCE,
                "        if mark in run.tool_calls:\n            # It",
                "        if False:\n            # It",
            ),
        ),
        breaks=("I11",),
        level="calm",
        settings=BUSY | {"weights": {"cancel": 40.0}},
        seed=46,
    ),
    Fault(
        id="tools-stale-is-retryable",
        rule="Tools: a stale generation is retryable while the runtime is being re-attached.",
        edits=(
            Edit(
                ACCEPTANCE,
                "        raise stale(retryable=fence.run_generation < run.run_generation)\n",
                "        raise stale()\n",
            ),
        ),
        breaks=("I10", "I11"),
        level="crash",
        settings=TAKEN_OVER,
        seed=58,
    ),
    Fault(
        id="tools-approval-asked-for",
        rule="Tools: approvals live on the tool's record: nothing runs before its approval.",
        edits=(Edit(BROKER, "        if needs_approval(call.grant):\n", "        if False:\n"),),
        breaks=("I25",),
        level="calm",
        settings=ASKING,
    ),
    Fault(
        id="tools-rejected-is-not-run",
        rule="Tools: approvals are consumed by the resumed run: what was rejected is not run.",
        edits=(Edit(BROKER, "        if decision.refuses:\n", "        if False:\n"),),
        breaks=("I25",),
        level="calm",
        settings=ASKING,
        seed=8,
    ),
    Fault(
        id="tools-edit-is-run",
        rule="Tools: approvals are consumed by the resumed run: an edit is what runs.",
        edits=(Edit(BROKER, "            given = arguments.plain(decision.edit)\n", ""),),
        breaks=("I25",),
        level="calm",
        settings=ASKING,
        seed=15,
    ),
)
