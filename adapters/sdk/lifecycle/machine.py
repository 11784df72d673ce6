"""The one state machine of a run's events (events, Lifecycle rules 1–8): pure, without clock or I/O."""

import hashlib

from adapters.sdk.lifecycle import text, wellformed
from adapters.sdk.lifecycle.closing import closing_drafts
from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS, EventLimits
from adapters.sdk.lifecycle.open_state import (
    DIGEST_CHARS,
    MessageKind,
    OpenCall,
    OpenMessage,
    OpenNamespace,
    OpenState,
    Path,
)
from adapters.sdk.lifecycle.values import check_json_object
from adapters.sdk.lifecycle.violation import ProtocolViolation
from adapters.sdk.lifecycle.wellformed import DELTA_TEXT, TERMINAL_KINDS, wire_name
from harness.event.v1 import event_pb2, payload_pb2

_MESSAGE_KINDS: dict[str, MessageKind] = {"content_delta": "content", "reasoning_delta": "reasoning"}
# What may stand between `interrupt.requested` and its terminal (rule 4).
_AFTER_INTERRUPT = frozenset({"tool_completed", "subagent_completed", "provider_metadata"})
_ROOT_ONLY = TERMINAL_KINDS | {"session_updated"}


class RunLifecycle:
    """Checks the drafts of one run, in order, and says what enters the log for each.

    The SDK holds one at the adapter's edge and the executor one at the log (I19); the log's is made with `at_log`, which
    drops `provider.metadata`, the one kind that never gets a sequence. `run.started` is the engine's own and
    never accepted from a runtime (rule 1). `accept` either raises and changes nothing, or returns and has changed.
    """

    __slots__ = (
        "_at_log",
        "_calls",
        "_ended",
        "_interrupt_id",
        "_limits",
        "_messages",
        "_namespaces",
        "_root_content",
        "_used_calls",
    )

    def __init__(self, limits: EventLimits = DEFAULT_LIMITS, *, at_log: bool = False) -> None:
        self._limits = limits
        self._at_log = at_log
        # Id of the content message open at the root, or empty: all that the fast path needs.
        self._root_content = ""
        self._messages: dict[Path, OpenMessage] = {}
        self._calls: dict[str, OpenCall] = {}
        self._namespaces: dict[Path, OpenNamespace] = {}
        self._used_calls: dict[str, None] = {}
        self._interrupt_id = ""
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether a terminal was accepted; from then on everything is refused."""
        return self._ended

    @property
    def interrupt_id(self) -> str:
        """The interrupt that was requested, or empty."""
        return self._interrupt_id

    def accept(self, draft: event_pb2.EventDraft) -> tuple[event_pb2.EventDraft, ...]:
        """What enters the log for `draft`, in order: nothing, the draft, its pieces, or closing events and a terminal.

        The draft itself is not changed; what is returned may be the same object. Raises ProtocolViolation if the draft is
        malformed, oversized or out of order.
        """
        delta = draft.payload.content_delta
        if (
            (message_id := self._root_content)
            and delta.message_id == message_id
            and (body := delta.text)
            and text.is_clean(body)
            and (size := len(body) if body.isascii() else len(body.encode())) <= self._limits.delta_bytes
            and draft.ByteSize() == _bare_delta_size(len(message_id), size)
        ):
            # The common case: more text for the message that is open. The size on the wire shows that there is nothing else
            # in the draft: no namespace, no private field, none that this version does not know.
            return (draft,)
        return self._accept(draft)

    def _accept(self, draft: event_pb2.EventDraft) -> tuple[event_pb2.EventDraft, ...]:
        kind = draft.payload.WhichOneof("kind")
        if kind is None:
            raise ProtocolViolation(7, "malformed", "an event has no known payload")
        if self._ended:
            raise ProtocolViolation(1, "after_terminal", f"{wire_name(kind)} came after the terminal event")
        if kind == "run_started":
            raise ProtocolViolation(1, "run_started", "run.started is written by the engine alone")
        if kind in DELTA_TEXT:
            return self._accept_delta(draft, kind)
        draft = wellformed.sanitised(draft)
        wellformed.check(draft, kind, self._limits)
        self._check_place(draft, kind)
        return self._apply(draft, kind)

    def _accept_delta(self, draft: event_pb2.EventDraft, kind: str) -> tuple[event_pb2.EventDraft, ...]:
        field = DELTA_TEXT[kind]
        draft = wellformed.sanitised(draft)
        delta = getattr(draft.payload, kind)
        body: str = getattr(delta, field)
        setattr(delta, field, "")
        # Without its text the draft is small or wrong; the text is bounded by splitting, not by refusing.
        wellformed.check(draft, kind, self._limits)
        self._check_place(draft, kind)
        if kind == "tool_arguments_delta":
            self._extend_arguments(draft, body)
        if not body:  # rule 8
            return ()
        if kind != "tool_arguments_delta":
            self._open_message(OpenMessage(_MESSAGE_KINDS[kind], delta.message_id, tuple(draft.namespace)))
        pieces: list[event_pb2.EventDraft] = []
        for piece in text.split(body, self._limits.delta_bytes):
            part = event_pb2.EventDraft()
            part.CopyFrom(draft)
            setattr(getattr(part.payload, kind), field, piece)
            pieces.append(part)
        return tuple(pieces)

    def _check_place(self, draft: event_pb2.EventDraft, kind: str) -> None:
        namespace = tuple(draft.namespace)
        if namespace and namespace not in self._namespaces:  # rule 3
            raise ProtocolViolation(3, "namespace_not_open", f"{wire_name(kind)} is outside every open namespace")
        if namespace and kind in _ROOT_ONLY:
            raise ProtocolViolation(3, "not_at_root", f"{wire_name(kind)} belongs to the root")
        if not self._interrupt_id:
            if kind == "run_interrupted":
                raise ProtocolViolation(4, "interrupt_not_requested", "run.interrupted without interrupt.requested")
            return
        if kind == "interrupt_requested":
            raise ProtocolViolation(4, "second_interrupt", "interrupt.requested came twice")
        if kind == "run_completed" or kind not in _AFTER_INTERRUPT | TERMINAL_KINDS:
            raise ProtocolViolation(4, "after_interrupt", f"{wire_name(kind)} came after interrupt.requested")
        if kind == "run_interrupted" and draft.payload.run_interrupted.interrupt_id != self._interrupt_id:
            raise ProtocolViolation(4, "other_interrupt", "run.interrupted names another interrupt")

    def _apply(self, draft: event_pb2.EventDraft, kind: str) -> tuple[event_pb2.EventDraft, ...]:
        if kind in TERMINAL_KINDS:
            closing = self.closing_events(draft)
            self._end()
            return (*closing, draft)
        if kind == "tool_started":
            self._start_call(draft)
        elif kind == "tool_completed":
            self._complete_call(draft)
        elif kind == "subagent_started":
            self._open_namespace(draft)
        elif kind == "subagent_completed":
            self._close_namespace(draft)
        elif kind == "interrupt_requested":
            self._request_interrupt(draft)
        elif kind == "provider_metadata" and self._at_log:
            return ()
        return (draft,)

    def closing_events(self, terminal: event_pb2.EventDraft) -> tuple[event_pb2.EventDraft, ...]:
        """Completions for what `terminal` would find open; `accept(terminal)` returns them before it (rules 2 and 3)."""
        kind = terminal.payload.WhichOneof("kind") or ""
        return tuple(closing_drafts(self._calls.values(), self._namespaces.values(), kind))

    def open_state(self) -> OpenState:
        """What is open now; `restore` of it gives a machine that goes on as this one would."""
        return OpenState(
            messages=tuple(self._messages.values()),
            calls=tuple(self._calls.values()),
            namespaces=tuple(self._namespaces.values()),
            used_calls=tuple(self._used_calls),
            interrupt_id=self._interrupt_id,
            ended=self._ended,
        )

    @classmethod
    def restore(cls, state: OpenState, limits: EventLimits = DEFAULT_LIMITS, *, at_log: bool = False) -> "RunLifecycle":
        """A machine that has seen what led to `state`."""
        machine = cls(limits, at_log=at_log)
        machine._messages = {message.namespace: message for message in state.messages}
        machine._calls = {call.tool_call_id: call for call in state.calls}
        machine._namespaces = {opened.path: opened for opened in state.namespaces}
        machine._used_calls = dict.fromkeys(state.used_calls)
        machine._interrupt_id = state.interrupt_id
        machine._ended = state.ended
        machine._note_root()
        return machine

    def copy(self) -> "RunLifecycle":
        """An independent machine in the same state: to try a terminal before what it needs is committed."""
        return RunLifecycle.restore(self.open_state(), self._limits, at_log=self._at_log)

    def _note_root(self) -> None:
        root = self._messages.get(())
        goes_on = root is not None and root.kind == "content" and not self._interrupt_id
        self._root_content = root.message_id if root is not None and goes_on else ""

    def _open_message(self, message: OpenMessage) -> None:
        self._messages[message.namespace] = message
        self._note_root()

    def _close_message(self, namespace: Path) -> None:
        self._messages.pop(namespace, None)
        self._note_root()

    def _start_call(self, draft: event_pb2.EventDraft) -> None:
        started = draft.payload.tool_started
        call_id = started.tool_call_id
        if call_id in self._calls or _digest(call_id) in self._used_calls:
            raise ProtocolViolation(2, "call_started_twice", "tool.started names a call that has already started")
        if len(self._calls) >= self._limits.open_calls:
            raise ProtocolViolation(7, "too_many_calls", f"more than {self._limits.open_calls} tool calls are open")
        namespace = tuple(draft.namespace)
        self._close_message(namespace)
        arguments = None if started.HasField("arguments") else ""
        self._calls[call_id] = OpenCall(call_id, namespace, arguments)

    def _call(self, call_id: str, draft: event_pb2.EventDraft, kind: str) -> OpenCall:
        call = self._calls.get(call_id)
        if call is None:
            raise ProtocolViolation(2, "call_not_open", f"{wire_name(kind)} names a tool call that is not open")
        if call.namespace != tuple(draft.namespace):
            raise ProtocolViolation(3, "other_namespace", f"{wire_name(kind)} is in another namespace than its call")
        return call

    def _extend_arguments(self, draft: event_pb2.EventDraft, fragment: str) -> None:
        call = self._call(draft.payload.tool_arguments_delta.tool_call_id, draft, "tool_arguments_delta")
        if call.arguments is None:
            raise ProtocolViolation(2, "arguments_given", "tool.arguments.delta for a call that started with arguments")
        joined = call.arguments + fragment
        if not text.fits(joined, self._limits.arguments_bytes):
            limit = self._limits.arguments_bytes
            raise ProtocolViolation(7, "too_large", f"the joined arguments of a tool call are over {limit} bytes")
        others = sum(len((other.arguments or "").encode()) for other in self._calls.values() if other is not call)
        if not text.fits(joined, self._limits.open_arguments_bytes - others):
            limit = self._limits.open_arguments_bytes
            raise ProtocolViolation(7, "too_large", f"the arguments of all open tool calls are over {limit} bytes")
        self._calls[call.tool_call_id] = OpenCall(call.tool_call_id, call.namespace, joined)

    def _complete_call(self, draft: event_pb2.EventDraft) -> None:
        completed = draft.payload.tool_completed
        call = self._call(completed.tool_call_id, draft, "tool_completed")
        # A call whose arguments never became JSON was never invoked: it may fail, not succeed.
        if call.arguments and completed.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS:
            limits = self._limits
            what = "the joined arguments of a tool call"
            check_json_object(call.arguments, what, depth=limits.metadata_depth, keys=limits.metadata_keys)
        del self._calls[call.tool_call_id]
        self._used_calls[_digest(call.tool_call_id)] = None
        while len(self._used_calls) > self._limits.remembered_calls:
            del self._used_calls[next(iter(self._used_calls))]
        self._close_message(call.namespace)

    def _open_namespace(self, draft: event_pb2.EventDraft) -> None:
        started = draft.payload.subagent_started
        path = (*draft.namespace, started.agent_id)
        if any(opened[-1] == started.agent_id for opened in self._namespaces):
            raise ProtocolViolation(3, "namespace_open", "subagent.started names a subagent that is already open")
        if len(path) > self._limits.namespace_depth or len(self._namespaces) >= self._limits.open_namespaces:
            raise ProtocolViolation(7, "too_many_namespaces", "subagents are nested too deeply or too many are open")
        self._namespaces[path] = OpenNamespace(path, started.parent_tool_call_id)

    def _close_namespace(self, draft: event_pb2.EventDraft) -> None:
        completed = draft.payload.subagent_completed
        path = (*draft.namespace, completed.agent_id)
        opened = self._namespaces.get(path)
        if opened is None:
            raise ProtocolViolation(3, "namespace_not_open", "subagent.completed names a subagent that is not open")
        if opened.parent_tool_call_id != completed.parent_tool_call_id:
            raise ProtocolViolation(3, "other_parent", "subagent.completed names another parent call")
        inner = len(path)
        if any(other[:inner] == path for other in self._namespaces if len(other) > inner):
            raise ProtocolViolation(3, "not_balanced", "subagent.completed while a subagent inside it is open")
        if any(call.namespace == path for call in self._calls.values()):
            raise ProtocolViolation(3, "not_balanced", "subagent.completed while a tool call inside it is open")
        del self._namespaces[path]
        self._close_message(path)

    def _request_interrupt(self, draft: event_pb2.EventDraft) -> None:
        requested = draft.payload.interrupt_requested
        waiting = (approval.tool_call_id for approval in requested.tool_approvals)
        if any(call_id in self._calls or _digest(call_id) in self._used_calls for call_id in waiting):
            # I25: a call that waits for approval has not started.
            raise ProtocolViolation(4, "approval_started", "interrupt.requested asks about a call that has started")
        self._interrupt_id = requested.interrupt_id
        self._note_root()

    def _end(self) -> None:
        self._messages.clear()
        self._calls.clear()
        self._namespaces.clear()
        self._root_content = ""
        self._ended = True


def _digest(call_id: str) -> str:
    return hashlib.blake2b(call_id.encode(), digest_size=DIGEST_CHARS // 2).hexdigest()


def _bare_delta_size(id_size: int, text_size: int) -> int:
    """Bytes of a draft that holds a content delta at the root and nothing else: tags and lengths of three nested messages."""
    inner = id_size + text_size + 4
    if inner < 124:
        return inner + 4
    inner += _extra(id_size) + _extra(text_size)
    middle = inner + 2 + _extra(inner)
    return middle + 2 + _extra(middle)


def _extra(length: int) -> int:
    """Bytes beyond the first that a length takes on the wire (a varint)."""
    return 0 if length < 1 << 7 else 1 if length < 1 << 14 else 2
