"""What must hold of tool calls: accepted before recorded, recorded before made, made once, told as it is recorded (run protocol, Tools)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from services.runs.tools.arguments import digest_of, plain
from services.runs.tools.record import effect_of, key_of, mark_of
from tests.simulation.violation import Violation

ONCE: Final = frozenset({"act", "ask"})
"""Tools whose every call has an effect; the others may be called again."""
OUTCOME: Final = ("state", "outcome", "result", "failure")


class ToolChecks:
    """Hears of every call. `runs` are the documents of runs, as they are stored."""

    def __init__(self, count: Any, runs: Mapping[str, Any]) -> None:
        self._count = count
        self._runs = runs
        self._records: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, str] = {}
        self._effects: Counter[str] = Counter()
        self._told: dict[str, bytes] = {}
        self._allowed: dict[str, list[dict[str, Any] | None]] = {}
        """What people let calls run with, by id; None: with what they were made with."""

    # --- what stores took ---

    def run_changed(self, before: dict[str, Any], after: dict[str, Any], call: Any) -> None:
        """A run was written."""
        run_id, known, calls = after["run_id"], before.get("tool_calls", []), after.get("tool_calls", [])
        if calls[: len(known)] != known:
            raise Violation("I11", f"{run_id} has lost calls that it accepted")
        if len(calls) == len(known):
            return
        self._count("call_accepted")
        if before.get("intent") or before.get("closed") or before["status"] != "running":
            raise Violation("I12", f"{run_id} accepts a call although its end was decided")
        if call is not None and call[0] == "InvokeTool":
            fence = call[1].fence
            if fence.run_generation != before["run_generation"]:
                raise Violation(
                    "I10",
                    f"{run_id} accepts a call of generation {fence.run_generation} in {before['run_generation']}",
                )

    def record_written(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        """The record of a call was written."""
        if after is None:
            raise Violation(
                "I11", f"the record of {before and before['tool_call_id']} was deleted within its retention"
            )
        call_id = after["tool_call_id"]
        key = key_of(after["binding_id"], after["epoch"], call_id)
        self._records[key] = after
        if before is None:
            self._keys[effect_of(key)] = key
            if mark_of(call_id) not in self._run(after["run_id"]).get("tool_calls", []):
                raise Violation("I11", f"{call_id} is recorded before its run accepted it")
            self._count(f"call_{after['state']}")
        elif before["state"] in ("done", "lost"):
            if any(before.get(name) != after.get(name) for name in OUTCOME):
                raise Violation("I11", f"{call_id} ended as {before['state']} and then as {after['state']}")
        elif before["state"] != after["state"]:
            self._count(f"call_{after['state']}")

    # --- what clients decided, what the provider did, what runtimes were told ---

    def decided(self, call_id: str, edit: dict[str, Any] | None) -> None:
        """A person lets the call pass, with other arguments or its own."""
        self._allowed.setdefault(call_id, []).append(edit)

    def effect(self, idempotency_key: str, tool_id: str, given: dict[str, Any]) -> None:
        """A provider was asked to do something."""
        self._count("call_effect")
        key = self._keys.get(idempotency_key)
        if key is None:
            raise Violation("I11", f"{tool_id} is called before the call is recorded")
        record = self._records[key]
        call_id = record["tool_call_id"]
        self._effects[key] += 1
        if self._effects[key] > 1 and tool_id in ONCE:
            raise Violation("I11", f"{call_id} of {tool_id} is made {self._effects[key]} times")
        if tool_id != "ask":
            return
        allowed = self._allowed.get(call_id, [])
        if not allowed:
            raise Violation("I25", f"{call_id} is made, and nobody approved it")
        digests = {record["digest"] if edit is None else digest_of(tool_id, edit) for edit in allowed}
        if digest_of(tool_id, given) not in digests:
            raise Violation("I25", f"{call_id} is made with {given}, which nobody approved")

    def answered(self, request: Any, response: Any) -> None:
        """A runtime is answered."""
        fence, call_id = request.fence, request.tool_call_id
        key = key_of(fence.binding_id, fence.epoch, call_id)
        record = self._records.get(key)
        if record is None:
            raise Violation("I11", f"{call_id} is answered and has no record")
        digest = digest_of(request.tool_id, plain(request.arguments))
        if digest not in (record["digest"], record.get("edited")):
            raise Violation("I11", f"{call_id} is answered with the outcome of another call")
        if response.WhichOneof("answer") == "approval_required":
            if key in self._told:
                raise Violation("I11", f"{call_id} ended and then waits")
            return
        if record["state"] not in ("done", "lost"):
            raise Violation("I11", f"{call_id} is answered and its record says {record['state']}")
        if response.completed.error.code == "tool_outcome_unknown":
            self._count("call_possible")
        told = self._told.setdefault(key, response.SerializeToString(deterministic=True))
        if told != response.SerializeToString(deterministic=True):
            raise Violation("I11", f"{call_id} was told to have ended in two ways")

    def refused(self, request: Any, reason: str, retryable: bool) -> None:
        """A runtime's call is refused."""
        self._count("call_refused")
        fence, call_id = request.fence, request.tool_call_id
        run = self._run(fence.run_id)
        if reason != "STALE_LEASE" or retryable or not run or not _is_its_runtime(run, fence):
            return
        record = self._records.get(key_of(fence.binding_id, fence.epoch, call_id))
        if mark_of(call_id) in run.get("tool_calls", []) and (record is None or record["state"] != "waiting"):
            raise Violation("I11", f"{call_id} is refused although it was accepted: it may have happened")
        open_still = run["status"] == "running" and not run.get("intent") and not run.get("closed")
        if open_still and fence.run_generation < run["run_generation"]:
            raise Violation("I10", f"{call_id} is refused for good while its runtime is being attached again")

    def _run(self, run_id: str) -> dict[str, Any]:
        facts = self._runs.get(run_id)
        return {} if facts is None else facts.document


def _is_its_runtime(run: dict[str, Any], fence: Any) -> bool:
    issued = run.get("issued")
    return (
        bool(issued)
        and issued[2] == fence.runtime_generation
        and (run["binding_id"], run["epoch"], run["turn"]) == (fence.binding_id, fence.epoch, fence.turn)
    )
