"""From a runtime's drafts to the segments of a run's log: offsets to sequences, what is open, packed events (run protocol, Issue and follow 2).

The engine maps offset to sequence once, here: one offset becomes none, one or several events. The rules of the events are those of
`adapters.sdk.lifecycle`, kept a second time (I19).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from adapters.sdk.lifecycle import TERMINAL_KINDS, OpenState, ProtocolViolation, RunLifecycle, public_payload
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from services.runs.log.port import SegmentHeader
from services.runs.segment import TERMINAL

VOCABULARY_VERSION: Final = 1
TARGET_SEGMENT_BYTES: Final = 1 << 20
"""A segment is closed before it passes this, unless one offset alone does."""
MAX_OFFSET_BYTES: Final = 2 << 20
"""All events of one offset together; they stand in one segment (I35)."""
EVENT_OVERHEAD: Final = 96
"""Bytes an event adds around its payload, at most: version, run id, sequence, time, lengths."""

_SESSION: Final = "session_updated"
_INTERRUPT: Final = "interrupt_requested"
_TOOL_DONE: Final = "tool_completed"
_WATCHED: Final = TERMINAL_KINDS | {_SESSION, _TOOL_DONE}


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a log ends, and all that is needed to go on there. The default is an empty log."""

    index: int = 0
    last_sequence: int = 0
    through_offset: int = 0
    run_generation: int = 0
    effects_known: bool = False
    """Whether a tool call has completed with success."""
    opened: OpenState = field(default_factory=OpenState)
    terminal_status: str = ""
    """Status that the terminal in the log gives the run; empty while there is none."""
    error_code: str = ""

    @classmethod
    def of(cls, header: SegmentHeader) -> Tail:
        """The tail that a last segment, or a seal, describes."""
        state = header.state
        return cls(
            index=header.index,
            last_sequence=header.last_sequence,
            through_offset=state["through_offset"],
            run_generation=header.run_generation,
            effects_known=state["effects_known"],
            opened=OpenState.from_dict(state["open"]),
            terminal_status=state.get("status", ""),
            error_code=state.get("error_code", ""),
        )

    def state(self, runtime: str) -> dict[str, Any]:
        """The header state of a segment that ends here. `runtime` is the incarnation that sent the events."""
        state: dict[str, Any] = {
            "through_offset": self.through_offset,
            "effects_known": self.effects_known,
            "runtime": runtime,
            "open": self.opened.to_dict(),
        }
        if self.terminal_status:
            state |= {TERMINAL: True, "status": self.terminal_status, "error_code": self.error_code}
        return state


@dataclass(frozen=True, slots=True)
class Packed:
    """Events ready to be appended. `tail` is the log's end once they are; `packed` is a serialized WatchRunResponse."""

    first_sequence: int
    tail: Tail
    packed: bytes


class Stop(Enum):
    """Why packing paused before the next draft: the executor has to do something about it first."""

    SESSION = "session"
    TERMINAL = "terminal"


@dataclass(slots=True)
class _Pause:
    """Events from an interrupt on, checked and not packed, and the last offset before them."""

    lifecycle: RunLifecycle
    after_offset: int
    events: list[event_pb2.EventDraft] = field(default_factory=list[event_pb2.EventDraft])
    size: int = 0


class Packer:
    """Packs the drafts of one run. Not yet taken events are held up to the reader's own bound; `pending_bytes` says how much it is."""

    def __init__(self, run_id: str, tail: Tail) -> None:
        self._run_id = run_id
        self._lifecycle = RunLifecycle.restore(tail.opened, at_log=True)
        self._index = tail.index
        self._sequence = tail.last_sequence
        self._offset = tail.through_offset
        self._effects_known = tail.effects_known
        self._full: deque[Packed] = deque()
        self._full_bytes = 0
        self._events = run_service_pb2.WatchRunResponse()
        self._bytes = 0
        self._first = tail.last_sequence + 1
        self._pause: _Pause | None = None

    @property
    def offset(self) -> int:
        """The last offset that was taken."""
        return self._offset

    @property
    def asked(self) -> event_pb2.EventDraft | None:
        """The interrupt that the runtime has asked for and that nobody may see yet (rule 4)."""
        return None if self._pause is None else self._pause.events[0]

    @property
    def last_sequence(self) -> int:
        """The last sequence that was given."""
        return self._sequence

    @property
    def effects_known(self) -> bool:
        """Whether a tool call of the run has completed with success."""
        return self._effects_known

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes of events that were not taken yet."""
        return self._full_bytes + self._bytes

    @property
    def has_full_segment(self) -> bool:
        """Whether a segment is complete and waits to be taken."""
        return bool(self._full)

    def start(self, started: payload_pb2.RunStarted, time: Timestamp) -> None:
        """`run.started`, written by the engine alone, sequence 1 (rule 1)."""
        if self._sequence:
            raise ValueError("a run starts once")
        self._add(event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_started=started)), time)

    def pack(self, batch: event_pb2.EventBatch, time: Timestamp) -> Stop | None:
        """Pack the batch's drafts after the last packed offset, up to the first that needs the executor, and say what it is.

        Errors: `ProtocolViolation`; what came before the bad draft stays packed, nothing of the draft itself is (I19).
        """
        drafts = batch.drafts
        skip = self._offset + 1 - batch.first_offset
        if skip < 0:
            raise ProtocolViolation(7, "offset_gap", "the event stream skipped offsets")
        size = batch.ByteSize() + EVENT_OVERHEAD * len(drafts)
        careful = self._bytes + size > TARGET_SEGMENT_BYTES
        if not careful:
            self._bytes += size
        run_id, accept, add = self._run_id, self._lifecycle.accept, self._events.events.add
        for draft in drafts[skip:] if skip else drafts:
            kind = draft.payload.WhichOneof("kind")
            if self._pause is not None or kind == _INTERRUPT:
                if kind in TERMINAL_KINDS:
                    return Stop.TERMINAL
                self.hold(draft)
                self._offset += 1
                continue
            watched = kind in _WATCHED
            if watched and (stop := self._stop_at(kind, draft)) is not None:
                return stop
            # A segment that ends before this draft says what was open before it.
            opened = self._lifecycle.open_state() if careful else None
            accepted = accept(draft)
            if opened is not None:
                self._make_room(accepted, opened)
                add = self._events.events.add
            if watched:
                self._note_effects(draft)
            sequence = self._sequence
            for event in accepted:
                sequence += 1
                add(
                    version=VOCABULARY_VERSION,
                    run_id=run_id,
                    sequence=sequence,  # I7: one more than the last, given here alone
                    time=time,
                    namespace=event.namespace,
                    payload=event.payload,
                )
            self._sequence = sequence
            self._offset += 1
        return None

    def draft_after_offset(self, batch: event_pb2.EventBatch) -> event_pb2.EventDraft:
        """The draft at which `pack` stopped."""
        return batch.drafts[self._offset + 1 - batch.first_offset]

    def hold(self, draft: event_pb2.EventDraft) -> None:
        """Keep an interrupt, and what closes before the run's end, out of every segment but the terminal's: by then it is stored (I24)."""
        if self._pause is None:
            self._pause = _Pause(self._lifecycle.copy(), self._offset)
        events = self._pause.lifecycle.accept(draft)
        self._note_effects(draft)
        self._pause.events += events
        self._pause.size += sum(event.ByteSize() + EVENT_OVERHEAD for event in events)
        if self._pause.size > MAX_OFFSET_BYTES:  # I35
            raise ProtocolViolation(
                7, "too_large", f"what ends a run with an interrupt is over {MAX_OFFSET_BYTES} bytes"
            )

    def session_updated(self, revision: int, time: Timestamp) -> None:
        """The event that stands for the draft at which `pack` stopped with SESSION: the native id is on the binding, never here."""
        payload = payload_pb2.EventPayload(session_updated=payload_pb2.SessionUpdated(session_revision=revision))
        self._offset += 1
        self._add(event_pb2.EventDraft(payload=payload), time)

    def check_terminal(self, draft: event_pb2.EventDraft) -> None:
        """Whether a runtime's terminal may stand here, before what it needs is committed. Errors: `ProtocolViolation`."""
        lifecycle = self._lifecycle if self._pause is None else self._pause.lifecycle
        lifecycle.copy().accept(draft)

    def end(self, draft: event_pb2.EventDraft, status: str, time: Timestamp) -> None:
        """The terminal with the closing events before it, in a segment of their own: nothing follows it (I9)."""
        self._close_segment()
        pause, self._pause = self._pause, None
        if pause is not None and draft.payload.HasField("run_interrupted"):
            self._lifecycle = pause.lifecycle
            for event in pause.events:
                self._add(event, time)
        elif pause is not None:
            self._offset = pause.after_offset  # nothing of it is ever told
        events = self._lifecycle.accept(draft)
        for event in events[:-1]:
            self._add(event, time)
        payload = public_payload(events[-1])  # I22: what is for operators stays out of the log
        self._add(event_pb2.EventDraft(payload=payload), time)
        self._close_segment(status, draft.payload.run_failed.code)

    def take(self) -> Packed | None:
        """The next segment to append, None when there is none. In order; each is taken once."""
        if not self._full:
            self._close_segment()
        if not self._full:
            return None
        packed = self._full.popleft()
        self._full_bytes -= len(packed.packed)
        return packed

    def _stop_at(self, kind: str, draft: event_pb2.EventDraft) -> Stop | None:
        if kind == _TOOL_DONE:
            return None
        if kind == _SESSION:
            self._lifecycle.accept(draft)
            return Stop.SESSION
        return Stop.TERMINAL

    def _note_effects(self, completed: event_pb2.EventDraft) -> None:
        if completed.payload.tool_completed.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS:
            self._effects_known = True

    def _make_room(self, accepted: tuple[event_pb2.EventDraft, ...], opened: OpenState) -> None:
        size = sum(event.ByteSize() + EVENT_OVERHEAD for event in accepted)
        if size > MAX_OFFSET_BYTES:  # I35
            raise ProtocolViolation(7, "too_large", f"one draft is over {MAX_OFFSET_BYTES} bytes")
        if self._bytes + size > TARGET_SEGMENT_BYTES:
            self._close_segment(opened=opened)
        self._bytes += size

    def _add(self, event: event_pb2.EventDraft, time: Timestamp) -> None:
        self._bytes += event.ByteSize() + EVENT_OVERHEAD
        self._sequence += 1
        self._events.events.add(
            version=VOCABULARY_VERSION,
            run_id=self._run_id,
            sequence=self._sequence,
            time=time,
            namespace=event.namespace,
            payload=event.payload,
        )

    def _close_segment(
        self, terminal_status: str = "", error_code: str = "", *, opened: OpenState | None = None
    ) -> None:
        self._bytes = 0
        if not self._events.events:
            return
        self._index += 1
        tail = Tail(
            index=self._index,
            last_sequence=self._sequence,
            through_offset=self._offset if self._pause is None else self._pause.after_offset,
            effects_known=self._effects_known,
            opened=self._lifecycle.open_state() if opened is None else opened,
            terminal_status=terminal_status,
            error_code=error_code,
        )
        packed = Packed(self._first, tail, self._events.SerializeToString())
        self._full.append(packed)
        self._full_bytes += len(packed.packed)
        self._events = run_service_pb2.WatchRunResponse()
        self._first = self._sequence + 1
