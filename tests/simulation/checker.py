"""What must hold over the whole history of a schedule, whatever failed in it. The first breach ends the schedule.

It looks at what the stores took, in the order in which they took it, at what providers were told to do, and at what clients and watchers were
answered: never into a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from harness.run.v1 import run_service_pb2
from services.runs.log import Segment, SegmentHeader
from services.sessions.binding import BindingDocument
from tests.simulation.adapter import BIG
from tests.simulation.processes import AGENTS, LEASE_TTL
from tests.simulation.tool_checks import ToolChecks
from tests.simulation.violation import Violation

OPEN: Final = ("queued", "running")
KINDS: Final = {
    "run_completed": "completed",
    "run_interrupted": "interrupted",
    "run_failed": "failed",
    "run_cancelled": "cancelled",
}
ENDED_OTHERWISE: Final = ("completed", "failed", "cancelled")
BROKEN: Final = ("protocol_violation", "internal")
"""Codes of failures for which nothing in the world is a reason."""
DECIDED: Final = (1, 2)
"""Reasons of `run.cancelled` that nobody but the engine gives: a client's wish, a clear."""
PATIENCE: Final = 20
"""How often one request may meet the same clear: as often as its client repeats it while nobody can be reached."""
SOON: Final = 15.0
"""Seconds of the world, once nothing goes wrong any more, in which what is due has to be done: some sweeps, two leases, a grace."""
LEASE: Final = 0.9 * LEASE_TTL
"""Seconds of the world for which a lease must have stood still before it is taken: an observer's clock may be that much too fast."""


@dataclass(slots=True)
class RunFacts:
    """What is known of a run."""

    run_id: str
    document: dict[str, Any] = field(default_factory=dict[str, Any])
    events: list[bytes] = field(default_factory=list[bytes])
    kinds: list[str] = field(default_factory=list[str])
    index: int = 0
    last_generation: int = 0
    sealed: int = 0
    """Highest generation for which the log was sealed."""
    terminal: str = ""
    terminal_payload: Any = None
    turns: list[str] = field(default_factory=list[str])
    """Incarnations in which a provider began it."""
    head: bool = False
    slot_generation: int = 0
    had_slot: bool = False
    through_offset: int = 0
    asked: bool = False
    """Whether its interrupt was stored."""
    told: bool = False
    """Whether somebody was told that it is cancelled."""
    renewed_at: float = 0.0
    """When its generation or renewals changed last."""
    ended_as: int = 0
    """Which end of all it was, from 1 on."""
    said: int = 0
    """Pieces of its text in the log."""
    padding: int = 0
    """Characters of a big piece whose number has not come yet."""


class Checker:
    """Hears of everything that takes effect. Every method raises `Violation`."""

    def __init__(self, count: Any, now: Callable[[], float] = lambda: 0.0) -> None:
        self._count = count
        self._now = now
        self.runs: dict[str, RunFacts] = {}
        self._tools = ToolChecks(count, self.runs)
        self.bindings: dict[str, BindingDocument] = {}
        self.closed: dict[str, BindingDocument] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self._begun_clears: dict[str, int] = {}
        self._bumps: dict[str, int] = {}
        self._decided: dict[tuple[str, str, int], tuple[str, str]] = {}
        self._dismissed_by: dict[str, str] = {}
        self._sent_away: set[str] = set()
        self._at_work: dict[tuple[str, str], tuple[str, int]] = {}
        self._told_to_stop: set[str] = set()
        self._stopped: set[tuple[str, str]] = set()
        self._closing_since: dict[str, float] = {}
        self._met_closing: Counter[tuple[str, str]] = Counter()
        self._renewals: dict[tuple[str, int], int] = {}
        self._executing: dict[tuple[Any, str, int], float] = {}
        """Since when a process executes a run under a generation."""
        self._refused: dict[Any, tuple[Any, str, int]] = {}
        self._overtaken: dict[tuple[Any, str, int], float] = {}
        """Since when it knows that a younger one holds it."""
        self.ends = 0
        """How many runs have ended."""

    def run(self, run_id: str) -> RunFacts:
        """The facts of a run."""
        facts = self.runs.get(run_id)
        if facts is None:
            facts = self.runs[run_id] = RunFacts(run_id)
        return facts

    # --- what stores took ---

    def wrote(self, collection: str, before: Any, after: Any, call: Any) -> None:
        """A write took effect."""
        if collection == "segments":
            self._appended(after)
        elif collection == "runs":
            if before is not None and after is not None:
                self._tools.run_changed(before, after, call)
            self._run_written(before, after)
        elif collection == "tool_calls":
            self._tools.record_written(before, after)
        elif collection == "bindings":
            self._binding_written(before, after, call)
        elif collection == "archived_bindings":
            self.closed[after["binding_id"]] = after

    def _run_written(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        if after is None:
            raise Violation("I9", f"run {_short(before)} was deleted within its retention")
        facts = self.run(after["run_id"])
        facts.document = after
        self._renewals[after["run_id"], after["run_generation"]] = after["renewals"]
        status = after["status"]
        if before is None:
            if status == "tombstone":
                self._count("tombstone")
                return
            key = (after["owner"], after["agent_id"], after["conversation_id"], after["request_key"])
            other = self._keys.setdefault(key, after["run_id"])
            if other != after["run_id"]:
                raise Violation("I6", f"request key {key[3]} has two runs, {other} and {after['run_id']}")
            facts.renewed_at = self._now()
            self._count("run_stored")
            if after["binding_id"] in self.closed and self._is_over(after):
                raise Violation("I5", f"{after['run_id']} was stored for an epoch that is closed")
            if after["run_id"] in self._dismissed_by and after["policy"] != "interrupt":
                raise Violation(
                    "I24", f"{after['run_id']} ({after['policy']}) dismissed {self._dismissed_by[after['run_id']]}"
                )
            return
        self._run_changed(facts, before, after)

    def _run_changed(self, facts: RunFacts, before: dict[str, Any], after: dict[str, Any]) -> None:
        run_id, generation = after["run_id"], after["run_generation"]
        if before["status"] not in OPEN and after != before and not after.get("trimmed"):
            raise Violation(
                "I9", f"{run_id} ended as {before['status']} and was changed afterwards to {after['status']}"
            )
        if generation < before["run_generation"]:
            raise Violation("I10", f"{run_id}: run_generation went from {before['run_generation']} to {generation}")
        if generation > before["run_generation"]:
            self._taken(facts, before, after)
        if (generation, after["renewals"]) != (before["run_generation"], before["renewals"]):
            facts.renewed_at = self._now()
        if before.get("deadline_at") and after.get("deadline_at") != before["deadline_at"]:
            raise Violation(
                "deadline", f"{run_id}: deadline_at was moved by {after.get('deadline_at')} after it was set"
            )
        if before.get("intent") and after.get("intent") != before["intent"]:
            raise Violation("I12", f"{run_id}: intent {before['intent']} was replaced by {after.get('intent')}")
        if after.get("intent") and not before.get("intent"):
            self._count("intent_" + (after["intent"].get("cancel") or "failed"))
            self._decided_to_end(facts, after)
        if before.get("issued") and after.get("issued") != before["issued"] and facts.turns:
            raise Violation("I11", f"{run_id}: began in {facts.turns} and was then issued to {after.get('issued')}")
        if before.get("intent") and after.get("issued") != before.get("issued"):
            raise Violation("I12", f"{run_id}: issued to {after['issued']} although its end was decided")
        if not after.get("holder") and before.get("holder") and after["status"] == "running":
            self._count("handed_over")
        if after["status"] not in OPEN:
            self._count("status_" + after["status"])
            if not facts.terminal:
                raise Violation("I9", f"{run_id} has status {after['status']} and no terminal in its log")
            if facts.terminal != after["status"]:
                raise Violation("I9", f"{run_id} has status {after['status']}, its log ended {facts.terminal}")
            if after["last_sequence"] != len(facts.events):
                raise Violation(
                    "I7", f"{run_id} says it has {after['last_sequence']} events, its log has {len(facts.events)}"
                )
        elif after["renewals"] > before["renewals"]:
            self._count("renewal")

    def _is_over(self, document: dict[str, Any]) -> bool:
        # Archived first, then replaced: until that, the epoch is open.
        return all(binding["binding_id"] != document["binding_id"] for binding in self.bindings.values())

    def _decided_to_end(self, facts: RunFacts, after: dict[str, Any]) -> None:
        code, cancel = after["intent"].get("code"), after["intent"].get("cancel")
        if code and code != "thread_durability_uncertain" and facts.head:
            raise Violation("I30", f"{facts.run_id} is failed with {code}, and the head names it")
        if cancel == "superseded" and after["policy"] != "interrupt" and facts.run_id not in self._sent_away:
            raise Violation("I12", f"{facts.run_id} was superseded, and no start of policy interrupt saw it in its way")

    def _taken(self, facts: RunFacts, before: dict[str, Any], after: dict[str, Any]) -> None:
        forced = after.get("ending") and not before.get("ending")
        if before["holder"] and not forced and self._now() - facts.renewed_at < LEASE:
            raise Violation(
                "lease",
                f"{facts.run_id} was taken {self._now() - facts.renewed_at:.2f} s after its holder's last renewal, unforced",
            )
        if forced:
            self._count("forced")
        elif after["run_generation"] > 1:
            self._count("takeover")
        if before["status"] == "running" and before.get("ending") and before["holder"] == after["holder"]:
            self._count("taken_again")

    def refused(self, life: Any, asking: Any, wanted: dict[str, Any], asked: float) -> None:
        """A process is told that a compare-and-set of a run, which the task `asking` made at the moment `asked`, came too late."""
        holder = (life, wanted["run_id"], wanted["run_generation"])
        is_renewal = wanted["renewals"] > self._renewals.get(holder[1:], 0)
        # A renewal from before it was executed there may fail unheard: the next one is the executor's own.
        if is_renewal and self._executing.get(holder, asked) < asked:
            self._refused[asking] = holder

    def read(self, asking: Any, stored: dict[str, Any]) -> None:
        """A process is told what is stored of a run: whose renewal was refused learns by this why."""
        holder = self._refused.pop(asking, None)
        if holder is not None and holder[1] == stored["run_id"] and stored["run_generation"] > holder[2]:
            self._count("renewal_failed")
            self._overtaken.setdefault(holder, self._now())

    def goes_on(self, life: Any) -> None:
        """A process that stood still goes on: what it was told before, it hears now."""
        for holder in self._overtaken:
            if holder[0] is life:
                self._overtaken[holder] = self._now()

    def sends(self, life: Any, what: str, run_id: str, generation: int) -> None:
        """A holder sends a segment, or calls a runtime for the events of its run."""
        self._executing.setdefault((life, run_id, generation), self._now())
        since = self._overtaken.get((life, run_id, generation))
        if since is not None and self._now() > since:
            raise Violation(
                "I10",
                f"{life} sends {what} of {run_id} as generation {generation}, {self._now() - since:.2f} s after its renewal failed",
            )

    def _appended(self, segment: Segment) -> None:
        header = segment.header
        facts = self.run(header.run_id)
        run_id = header.run_id
        if facts.terminal:
            raise Violation("I9", f"{run_id}: segment {header.index} stands behind the terminal")
        if header.index != facts.index + 1 or header.first_sequence != len(facts.events) + 1:
            raise Violation("I7", f"{run_id}: segment {header.index} leaves a gap")
        if header.run_generation < facts.sealed:
            raise Violation(
                "I10", f"{run_id}: generation {header.run_generation} wrote after the seal of {facts.sealed}"
            )
        if header.run_generation < facts.last_generation:
            raise Violation("I10", f"{run_id}: generation {header.run_generation} wrote after {facts.last_generation}")
        if header.run_generation > max(1, facts.sealed) and not header.is_seal:
            raise Violation("I10", f"{run_id}: generation {header.run_generation} writes a log it has not sealed")
        facts.index, facts.last_generation = header.index, header.run_generation
        offset = header.state["through_offset"]
        if header.is_seal:
            self._count("seal")
            facts.sealed = header.run_generation
            if offset != facts.through_offset:
                raise Violation("I7", f"{run_id}: a seal moved through_offset from {facts.through_offset} to {offset}")
            return
        if offset < facts.through_offset:
            raise Violation("I7", f"{run_id}: through_offset went back from {facts.through_offset} to {offset}")
        facts.through_offset = offset
        self._take_events(facts, segment)

    def left_a_gap(self, header: SegmentHeader) -> None:
        """The log refused a segment that does not follow on."""
        facts = self.run(header.run_id)
        raise Violation("I7", f"{header.run_id}: segment {header.index} was sent before {facts.index + 1} was there")

    def _take_events(self, facts: RunFacts, segment: Segment) -> None:
        run_id, header = facts.run_id, segment.header
        document = facts.document
        if not document or document["status"] == "tombstone":
            raise Violation("I6", f"{run_id} has events and was never stored")
        for event in run_service_pb2.WatchRunResponse.FromString(segment.events).events:
            if facts.terminal:
                raise Violation("I9", f"{run_id}: event {event.sequence} follows the terminal")
            if event.sequence != len(facts.events) + 1 or event.run_id != run_id:
                raise Violation("I7", f"{run_id}: event {event.sequence} stands where {len(facts.events) + 1} belongs")
            kind = event.payload.WhichOneof("kind") or ""
            if (kind == "run_started") != (event.sequence == 1):
                raise Violation("I7", f"{run_id}: event {event.sequence} is {kind}")
            facts.events.append(event.SerializeToString())
            facts.kinds.append(kind)
            if kind == "content_delta":
                self._heard(facts, event.payload.content_delta.text)
            if kind in KINDS:
                facts.terminal = KINDS[kind]
                facts.terminal_payload = event.payload
                self._ended(facts, kind)
        if len(facts.events) != header.last_sequence:
            raise Violation("I7", f"{run_id}: segment {header.index} does not hold what its header says")
        if bool(header.state.get("terminal")) != bool(facts.terminal):
            raise Violation("I9", f"{run_id}: segment {header.index} does not say whether it ends the run")

    def _heard(self, facts: RunFacts, text: str) -> None:
        # The simulated harness counts: what is missing in the log, or stands in it twice, shows.
        facts.padding += text.count(BIG[0])
        for number in text.replace(BIG[0], "").split(";")[:-1]:
            if int(number) != facts.said or facts.padding not in (0, len(BIG)):
                raise Violation(
                    "I7",
                    f"{facts.run_id} said {number} ({facts.padding}) where {facts.said} belongs: lost, or told twice",
                )
            facts.said, facts.padding = facts.said + 1, 0
        if facts.padding > len(BIG):
            raise Violation("I7", f"{facts.run_id}: a part of piece {facts.said} was told twice")

    def _ended(self, facts: RunFacts, kind: str) -> None:
        self._count(kind)
        self._refuses_tools(facts, kind)
        self.ends += 1
        facts.ended_as = self.ends
        payload = facts.terminal_payload
        document = facts.document
        if kind == "run_completed":
            durable = payload.run_completed.thread_state.durable_revision
            if not payload.run_completed.stop_reason or not payload.run_completed.thread_state.durability:
                raise Violation("I30", f"{facts.run_id} completed, and its outcome is not what was committed")
            if durable and not facts.head:
                raise Violation("I30", f"{facts.run_id} completed with revision {durable} and no head names it")
            if not facts.turns:
                raise Violation("I11", f"{facts.run_id} completed and no provider began it")
        if kind == "run_interrupted" and not facts.asked:
            raise Violation("I24", f"{facts.run_id} ended interrupted, and its interrupt was never stored")
        if kind == "run_cancelled":
            reason = payload.run_cancelled.reason
            self._count(f"cancelled_{reason}")
            side = payload.run_cancelled.side_effect_status
        elif kind == "run_failed":
            self._count("failed_" + payload.run_failed.code)
            if payload.run_failed.code in BROKEN:
                raise Violation(
                    "defect", f"{facts.run_id} failed with {payload.run_failed.code}: its harness broke nothing"
                )
            side = payload.run_failed.side_effect_status
        else:
            return
        if facts.turns and side == 1 and len(facts.kinds) > 2:
            raise Violation("I11", f"{facts.run_id} ended with side effects none, and its provider had begun")
        intent = document.get("intent")
        if intent is None and kind == "run_cancelled" and payload.run_cancelled.reason in DECIDED:
            raise Violation("I12", f"{facts.run_id} was cancelled without an intent")
        at_work = any(run_id == facts.run_id for run_id, _ in self._at_work.values())
        if intent is not None and at_work and facts.run_id not in self._told_to_stop:
            raise Violation("I12", f"{facts.run_id} was ended, and nobody told its runtime, which is at work, to stop")

    def _refuses_tools(self, facts: RunFacts, what: str) -> None:
        document = facts.document
        has_tools = bool(AGENTS[document["agent_id"]].tools.bindings)
        if has_tools and not document["closed"] and document.get("intent") is None:
            raise Violation("I12", f"{facts.run_id}: {what}, and a tool call would still pass")

    def _binding_written(self, before: BindingDocument | None, after: BindingDocument, call: Any) -> None:
        key = f"{after['owner_id']}/{after['agent_id']}/{after['conversation_id']}"
        if before is None:
            if key in self.bindings:
                raise Violation("I3", f"{key} has two bindings")
            self._count("binding")
            if after["epoch"] != 1:
                raise Violation("I5", f"{key} begins with epoch {after['epoch']}")
            before = {**after, "active": None, "waiting": [], "turn": 0, "used": False}
        elif before["binding_id"] != self.bindings[key]["binding_id"]:
            raise Violation("I3", f"{key} has two bindings of one epoch")
        self.bindings[key] = after
        if after["epoch"] != before["epoch"]:
            self._epoch_opened(key, before, after)
            return
        if after["binding_id"] != before["binding_id"]:
            raise Violation("I3", f"{key}: epoch {after['epoch']} changed its binding id")
        self._closing_kept(key, before, after)
        self._slot_changed(key, before, after)
        self._line_changed(key, before, after)
        self._moved_up(key, after)
        self._fenced(key, before, after, call)
        self._interrupt_changed(key, before, after)

    def _epoch_opened(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        self._count("clear")
        self._bumps[key] = self._bumps.get(key, 0) + 1
        if after["epoch"] != before["epoch"] + 1:
            raise Violation("I5", f"{key}: epoch went from {before['epoch']} to {after['epoch']}")
        if before["status"] != "closing":
            raise Violation("I5", f"{key}: epoch {before['epoch']} was closed without being cleared")
        if before["active"] is not None or before["waiting"]:
            raise Violation("I5", f"{key}: epoch {before['epoch']} was closed while a run held or awaited its slot")
        if after["head"] is not None or after["native_session_id"] or after["waiting"] or after["active"]:
            raise Violation("I5", f"{key}: something was carried over into epoch {after['epoch']}")
        if before["binding_id"] not in self.closed:
            raise Violation("I5", f"{key}: epoch {before['epoch']} was not archived")
        kept = {name: value for name, value in self.closed[before["binding_id"]].items() if name != "rev"}
        if kept != {name: value for name, value in before.items() if name != "rev"}:
            raise Violation("I5", f"{key}: the archive of epoch {before['epoch']} differs from how it was closed")
        for facts in self.runs.values():
            document = facts.document
            if (
                document
                and document["binding_id"] == before["binding_id"]
                and document["status"] in OPEN
                and not facts.terminal
            ):
                raise Violation("I5", f"{key}: epoch {before['epoch']} was closed and {facts.run_id} has not ended")

    def _closing_kept(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        if before["status"] != "closing":
            if after["status"] == "closing":
                self._closing_since[key] = self._now()
            return
        if after["status"] != "closing":
            raise Violation("I5", f"{key}: a clear that had begun was taken back")
        if after["head"] != before["head"] or after["native_session_id"] != before["native_session_id"]:
            raise Violation("I5", f"{key}: head or session changed while the epoch was being closed")
        old, new = before["active"] or {}, after["active"] or {}
        if len(after["waiting"]) > len(before["waiting"]) or (new and new["run_id"] != old.get("run_id")):
            raise Violation("I5", f"{key}: a run entered an epoch that is being closed")

    def _slot_changed(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        old, new = before["active"], after["active"]
        if old is not None and (new is None or new["run_id"] != old["run_id"]):
            facts = self.run(old["run_id"])
            stored = facts.document and facts.document["status"] != "tombstone"
            # I6: a slot is given back after the terminal, or for a reservation that never became a run.
            if stored and not facts.terminal:
                raise Violation("I6", f"{key}: {old['run_id']} lost its slot before its terminal")
            if not facts.document and after["status"] == "active" and not self._was_known(old):
                raise Violation("I6", f"{key}: the reservation {old['run_id']} was released without a tombstone")
        if new is not None and (old is None or new["run_id"] != old["run_id"]):
            self._count("slot_given")
            facts = self.run(new["run_id"])
            facts.had_slot, facts.slot_generation = True, 1
            if after["turn"] != before["turn"] + 1:
                raise Violation(
                    "I6", f"{key}: the slot was given and turn went from {before['turn']} to {after['turn']}"
                )
            line = before["waiting"]
            resumes = (after.get("interrupt") or {}).get("consumed_by") == new["run_id"]
            # A start of policy `interrupt` goes before all others, and past what was asked.
            dismisses = bool(before.get("interrupt")) and after.get("interrupt") is None
            if line and not resumes and not dismisses and new["run_id"] != line[0]["run_id"]:
                raise Violation(
                    "queue", f"{key}: {new['run_id']} got the slot before {line[0]['run_id']}, the first in line"
                )
        elif after["turn"] != before["turn"]:
            raise Violation("I6", f"{key}: turn went from {before['turn']} to {after['turn']} with no new run")
        if new is not None and old is not None and new["run_id"] == old["run_id"]:
            if new["run_generation"] < old["run_generation"]:
                raise Violation("I10", f"{key}: the slot's generation went back")
            self.run(new["run_id"]).slot_generation = new["run_generation"]
            if new["run_generation"] > old["run_generation"]:
                self._count("slot_claimed")

    def _was_known(self, turn: Any) -> bool:
        # An older run has the request key: nothing was stored for this reservation, and nothing can be.
        return any(key[3] == turn["request_key"] for key in self._keys)

    def _had_run(self, turn: Any) -> bool:
        return any(key[3] == turn["request_key"] and run_id != turn["run_id"] for key, run_id in self._keys.items())

    def _line_changed(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        old, new = [one["run_id"] for one in before["waiting"]], [one["run_id"] for one in after["waiting"]]
        if old == new:
            return
        if len(set(new)) != len(new):
            raise Violation("queue", f"{key}: a run waits twice")
        joined = [run_id for run_id in new if run_id not in old]
        stayed = [run_id for run_id in old if run_id in new]
        if [run_id for run_id in new if run_id in old] != stayed:
            raise Violation("queue", f"{key}: those in line changed places")
        active = after["active"]
        for run_id in old:
            if run_id in new or (active is not None and active["run_id"] == run_id):
                continue
            facts = self.run(run_id)
            self._count("withdrawn")
            if facts.document and facts.document["status"] in OPEN and not facts.terminal:
                raise Violation("queue", f"{key}: {run_id} left the line before its end")
        for place in after["waiting"]:
            if place["run_id"] not in joined:
                continue
            self._count("waited_" + place["policy"])
            if place["policy"] == "interrupt" and active is not None:
                self._sent_away.add(active["run_id"])
            position = new.index(place["run_id"])
            if position != (0 if place["policy"] == "interrupt" else len(new) - 1):
                raise Violation("queue", f"{key}: {place['run_id']} ({place['policy']}) joined at place {position}")

    def _moved_up(self, key: str, after: BindingDocument) -> None:
        line, pending = after["waiting"], after.get("interrupt")
        if after["active"] is not None or not line or after["status"] != "active":
            return
        if pending is None or pending["consumed_by"] or line[0]["policy"] == "interrupt":
            raise Violation("queue", f"{key}: the slot is free and {line[0]['run_id']} waits for nothing")

    def _fenced(self, key: str, before: BindingDocument, after: BindingDocument, call: Any) -> None:
        head, session = after["head"], after["native_session_id"]
        if head == before["head"] and session == before["native_session_id"]:
            return
        method, request = call if call is not None else ("", None)
        fence = request.fence if request is not None and hasattr(request, "fence") else None
        if fence is None:
            raise Violation("I10", f"{key}: head or session changed by {method or 'nobody'}, which carries no fence")
        facts = self.run(fence.run_id)
        if fence.run_generation < facts.sealed:
            raise Violation(
                "I10",
                f"{key}: {method} of {fence.run_id} generation {fence.run_generation} after the seal of {facts.sealed}",
            )
        if before["active"] is None or before["active"]["run_id"] != fence.run_id:
            raise Violation("I6", f"{key}: {method} of {fence.run_id}, which does not hold the slot")
        # Until the slot is given back sessions accepts what was under way; what a cancel was answered for is over.
        if facts.told or (facts.terminal and head != before["head"]):
            raise Violation("I12", f"{key}: {method} of {fence.run_id} after its terminal ({facts.terminal})")
        if head != before["head"]:
            self._count("head")
            assert head is not None
            if head["run_id"] != fence.run_id:
                raise Violation("I30", f"{key}: {fence.run_id} committed a head of {head['run_id']}")
            if head["revision"] != (0 if before["head"] is None else before["head"]["revision"]) + 1:
                raise Violation("I30", f"{key}: head revision is {head['revision']}")
            self._refuses_tools(facts, "its head is committed")
            if before["active"]["uncertain"]:
                raise Violation("I30", f"{key}: a head was committed after it was marked uncertain")
            facts.head = True

    def _interrupt_changed(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        old, new = before.get("interrupt"), after.get("interrupt")
        active = after["active"]
        given = active is not None and (before["active"] is None or before["active"]["run_id"] != active["run_id"])
        if old == new:
            self._kept_by_right(key, before, after)
            if given and old is not None and not old["consumed_by"]:
                raise Violation("I24", f"{key}: the slot was given past the interrupt of {old['run_id']}")
            return
        if new is not None and (old is None or new["run_id"] != old["run_id"]):
            self._count("interrupt_stored")
            head = after["head"]
            if head is not None and head["run_id"] != new["run_id"]:
                raise Violation("I24", f"{key}: the interrupt of {new['run_id']} was stored without its head")
            self.run(new["run_id"]).asked = True
            return
        assert old is not None
        if new is None and self._ended_otherwise(before, old["run_id"]):
            self._count("interrupt_untold")
            return
        if new is None:
            if not old["consumed_by"] and given and active is not None:
                self._count("interrupt_dismissed")
                if self._had_run(active):
                    raise Violation("I6", f"{key}: a request that had its run already dismissed an interrupt")
                self._dismissed_by[active["run_id"]] = old["run_id"]
                document = self.run(active["run_id"]).document
                # What was never stored dismisses as it was reserved; its tombstone says nothing of that.
                if document and document["status"] != "tombstone" and document["policy"] != "interrupt":
                    raise Violation("I24", f"{key}: {active['run_id']} ({document['policy']}) dismissed an interrupt")
            elif not old["consumed_by"] and (before["active"] or {}).get("run_id") != old["run_id"]:
                raise Violation("I24", f"{key}: the interrupt of {old['run_id']} was dismissed and nobody got the slot")
            elif not old["consumed_by"] and active is not None and active["run_id"] == old["run_id"]:
                raise Violation("I24", f"{key}: the interrupt of {old['run_id']} was dismissed while that had the slot")
            return
        if new["consumed_by"] and not old["consumed_by"]:
            self._count("interrupt_consumed")
            if active is None or active["run_id"] != new["consumed_by"] or not given:
                raise Violation("I24", f"{key}: {new['consumed_by']} consumed an interrupt and did not get the slot")
            if not self.run(old["run_id"]).terminal:
                raise Violation("I24", f"{key}: the interrupt of {old['run_id']} was consumed before its terminal")
            if self._had_run(active):
                raise Violation("I6", f"{key}: a request that had its run already consumed an interrupt")
        elif old["consumed_by"] and not new["consumed_by"]:
            self._count("interrupt_given_back")
            if self._leaver(before, after) != old["consumed_by"]:
                raise Violation("I24", f"{key}: an interrupt was given back, and {old['consumed_by']} has not ended")
            if self.run(old["consumed_by"]).turns:
                raise Violation("I24", f"{key}: {old['consumed_by']} began and its interrupt was given back")
            if new["revision"] != old["revision"] + 1:
                raise Violation("I24", f"{key}: an interrupt was given back with revision {new['revision']}")
        elif old["consumed_by"] != new["consumed_by"]:
            raise Violation("I24", f"{key}: an interrupt was consumed by {old['consumed_by']} and {new['consumed_by']}")
        else:
            self._kept_by_right(key, before, after)

    def _kept_by_right(self, key: str, before: BindingDocument, after: BindingDocument) -> None:
        consumer = (after.get("interrupt") or {}).get("consumed_by")
        if consumer and self._leaver(before, after) == consumer and not self.run(consumer).document.get("issued"):
            raise Violation("I24", f"{key}: {consumer} ended, was never issued, and keeps the interrupt it consumed")
        pending = after.get("interrupt")
        if pending is None or pending["consumed_by"] or self._leaver(before, after) != pending["run_id"]:
            return
        if self.run(pending["run_id"]).terminal != "interrupted":
            raise Violation("I24", f"{key}: {pending['run_id']} did not end with its interrupt, and leaves it")

    def _leaver(self, before: BindingDocument, after: BindingDocument) -> str:
        """The run that held the slot and does so no more."""
        old, new = before["active"], after["active"]
        return old["run_id"] if old is not None and (new is None or new["run_id"] != old["run_id"]) else ""

    def _ended_otherwise(self, before: BindingDocument, run_id: str) -> bool:
        # Its run gives the slot back and did not end with it: nobody was told, and nobody answers it.
        holder = before["active"]
        return holder is not None and holder["run_id"] == run_id and self.run(run_id).terminal in ENDED_OTHERWISE

    # --- what providers did ---

    def turn_began(self, incarnation: str, run_id: str, turn: int, binding_id: str) -> None:
        """A provider's turn begins."""
        facts = self.run(run_id)
        self._count("turn_began")
        if (incarnation, run_id) in self._stopped:
            raise Violation("I12", f"{run_id} began in {incarnation}, which had been told to stop it")
        place = (incarnation, binding_id)
        at_work, youngest = self._at_work.get(place, ("", 0))
        if at_work:
            raise Violation("I6", f"{run_id} began in {incarnation} beside {at_work}, which is still at work there")
        if turn <= youngest:
            raise Violation("I6", f"{run_id}, turn {turn}, began in {incarnation} after turn {youngest}")
        self._at_work[place] = (run_id, turn)
        if not facts.had_slot:
            raise Violation("I6", f"{run_id} began and never had the slot")
        if facts.turns:
            raise Violation("I11", f"{run_id} began in {facts.turns} and again in {incarnation}")
        facts.turns.append(incarnation)
        document = facts.document
        if not document or document["status"] == "tombstone":
            raise Violation("I6", f"a provider began {run_id}, which is not stored")
        issued = document.get("issued")
        if issued is None or issued[1] != incarnation:
            raise Violation("I11", f"{run_id} began in {incarnation}, the record says {issued}")

    def turn_ended(self, incarnation: str, run_id: str, binding_id: str) -> None:
        """A provider's turn is over."""
        at_work, turn = self._at_work.get((incarnation, binding_id), ("", 0))
        if at_work == run_id:
            self._at_work[incarnation, binding_id] = ("", turn)

    def told_to_stop(self, run_id: str) -> None:
        """Somebody tells the run's runtime to stop it; whether it arrives is another matter."""
        self._told_to_stop.add(run_id)

    def stopped(self, incarnation: str, run_id: str) -> None:
        """An incarnation was told to stop a run, and has answered."""
        self._stopped.add((incarnation, run_id))

    def met_closing(self, request_key: str, binding_id: str) -> None:
        """A reservation was told that the epoch is being closed: whoever is told so ends it, before the next attempt."""
        self._met_closing[request_key, binding_id] += 1
        if self._met_closing[request_key, binding_id] > PATIENCE:
            raise Violation("I5", f"a start met the clear of {binding_id} more than {PATIENCE} times and did not help")

    def acknowledged(self, run_id: str, through_offset: int) -> None:
        """A runtime is told that it may forget its drafts up to an offset."""
        self._count("acknowledged")
        durable = self.run(run_id).through_offset
        if through_offset > durable:
            raise Violation("I8", f"{run_id}: offset {through_offset} was acknowledged, {durable} is durable")

    # --- what clients were told ---

    def started(self, run_id: str, request_id: str, seen: dict[str, str]) -> None:
        """A start was answered with a run."""
        facts = self.run(run_id)
        if not facts.document or facts.document["status"] == "tombstone":
            raise Violation("I6", f"a start was answered with {run_id}, which is not stored")
        before = seen.setdefault(request_id, run_id)
        if before != run_id:
            raise Violation("I6", f"request {request_id} was answered with {before} and with {run_id}")

    def conflicted(self, conflict_with: str, request_id: str, known: str | None, ends_before: int) -> None:
        """A start was refused because of a run, `ends_before` runs having ended when it was asked for."""
        self._count("conflict")
        facts = self.run(conflict_with)
        if not facts.document or facts.document["status"] == "tombstone":
            raise Violation("I6", f"a start met {conflict_with} as a conflict, which is not stored")
        if facts.terminal and facts.ended_as <= ends_before:
            raise Violation("I6", f"a start met {conflict_with} as a conflict, which had ended before")
        if known is not None:
            raise Violation("I6", f"request {request_id} has the run {known} and met {conflict_with} as a conflict")

    def interrupt_shown(self, run_id: str) -> None:
        """A client was shown the interrupt of a run."""
        if self.run(run_id).terminal != "interrupted":
            raise Violation("I24", f"the interrupt of {run_id} was shown before its terminal was in the log")

    def resumed(self, run_id: str, question: tuple[str, str, int], decision: str) -> None:
        """A decision was answered with a run."""
        self._count("resumed")
        facts = self.run(run_id)
        if not facts.document or facts.document["status"] == "tombstone":
            raise Violation("I6", f"a decision was answered with {run_id}, which is not stored")
        before = self._decided.setdefault(question, (decision, run_id))
        if before != (decision, run_id):
            raise Violation("I24", f"{question} was decided as {before} and as {(decision, run_id)}")

    def let_pass(self, call_id: str, edit: dict[str, Any] | None) -> None:
        """A person approves a tool call."""
        self._tools.decided(call_id, edit)

    def tool_called(self, idempotency_key: str, tool_id: str, given: dict[str, Any]) -> None:
        """A provider of tools is called."""
        self._tools.effect(idempotency_key, tool_id, given)

    def tool_answered(self, request: Any, response: Any) -> None:
        """The tool broker answers a runtime."""
        self._tools.answered(request, response)

    def tool_refused(self, request: Any, reason: str, retryable: bool) -> None:
        """The tool broker refuses a runtime's call."""
        self._tools.refused(request, reason, retryable)

    def cancelled(self, run_id: str) -> None:
        """A cancel was answered."""
        facts = self.run(run_id)
        if not facts.terminal:
            raise Violation("I12", f"the cancel of {run_id} was answered and its log has no terminal")
        facts.told = True

    def cleared(self, key: str, next_epoch: int) -> None:
        """A clear was answered as done."""
        binding = self.bindings.get(key)
        if binding is None or binding["epoch"] < next_epoch:
            raise Violation("I5", f"{key}: a clear was answered with epoch {next_epoch}, which is not open")

    def watched(self, run_id: str, cursor: int, packed: bytes) -> int:
        """A watcher was sent events after its cursor; its next cursor."""
        facts = self.run(run_id)
        for event in run_service_pb2.WatchRunResponse.FromString(packed).events:
            cursor += 1
            if event.sequence != cursor:
                raise Violation("I7", f"{run_id}: a watcher got {event.sequence} where {cursor} belongs")
            if cursor > len(facts.events):
                raise Violation("I8", f"{run_id}: a watcher saw event {cursor} before it was durable")
            if facts.events[cursor - 1] != event.SerializeToString():
                raise Violation("I8", f"{run_id}: a watcher saw another event {cursor} than the log holds")
        return cursor

    def watch_ended(self, run_id: str, cursor: int) -> None:
        """A watch came to its regular end."""
        facts = self.run(run_id)
        if not facts.terminal or cursor != len(facts.events):
            raise Violation("I7", f"{run_id}: a watch ended after event {cursor} of {len(facts.events)}")

    def overdue(self, calm_since: float, unix: float, skew: float) -> None:
        """It is long calm. `unix` is the time by no clock in particular, none of which is more than `skew` seconds wrong."""
        if self._now() - calm_since < SOON:
            return
        for run_id, facts in self.runs.items():
            document = facts.document
            if not document or facts.terminal or document["status"] not in OPEN:
                continue
            late = unix - (document.get("deadline_at") or 0) / 1000 - skew
            if document.get("deadline_at") and late > SOON:
                raise Violation("deadline", f"{run_id} is past its deadline by more than {SOON:g} s")
            if document.get("intent") is None and self._is_in_the_way(document):
                raise Violation(
                    "queue", f"{run_id} holds the slot before a run of policy interrupt, and nobody ends it"
                )
        for key, binding in self.bindings.items():
            if binding["status"] == "closing" and self._now() - self._closing_since[key] > SOON:
                raise Violation("I5", f"{key} is being cleared for more than {SOON:g} s")

    def _is_in_the_way(self, document: dict[str, Any]) -> bool:
        for binding in self.bindings.values():
            active, line = binding["active"], binding["waiting"]
            if active is not None and active["run_id"] == document["run_id"] and line:
                first = self.run(line[0]["run_id"]).document
                return line[0]["policy"] == "interrupt" and bool(first) and first["status"] in OPEN
        return False

    # --- the end ---

    def unsettled(self) -> list[str]:
        """What has not come to rest."""
        left = [
            f"{run_id} is {facts.document['status']}"
            + (f" (intent {facts.document['intent']})" if facts.document.get("intent") else "")
            for run_id, facts in self.runs.items()
            if facts.document and facts.document["status"] in OPEN
        ]
        for key, binding in self.bindings.items():
            if binding["active"] is not None:
                left.append(f"{key}: {binding['active']['run_id']} holds the slot")
            if binding["waiting"]:
                left.append(f"{key}: {len(binding['waiting'])} wait")
            if binding["status"] != "active":
                left.append(f"{key} is being cleared")
        return left

    def finish(self, clears: dict[str, int]) -> None:
        """The schedule is over and everything has come to rest."""
        for run_id, facts in self.runs.items():
            if facts.document and facts.document["status"] != "tombstone" and not facts.terminal:
                raise Violation("I9", f"{run_id} has no terminal")
        for key, bumps in self._bumps.items():
            if bumps > clears.get(key, 0):
                raise Violation("I5", f"{key} was cleared {bumps} times, asked for {clears.get(key, 0)} times")


def _short(document: dict[str, Any] | None) -> str:
    return "?" if document is None else str(document.get("run_id"))
