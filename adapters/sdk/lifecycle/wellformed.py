"""Whether one event is well formed, whatever came before it: fields, sizes, structured values, private fields (rule 7)."""

import math
from collections.abc import Callable

import protovalidate
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from adapters.sdk.lifecycle import text
from adapters.sdk.lifecycle.limits import EventLimits
from adapters.sdk.lifecycle.values import check_struct, check_value
from adapters.sdk.lifecycle.violation import ProtocolViolation
from harness.event.v1 import event_pb2, payload_pb2

TERMINAL_KINDS = frozenset({"run_completed", "run_interrupted", "run_cancelled", "run_failed"})

# Kinds with text that is split rather than refused, and the field that holds it.
DELTA_TEXT = {"content_delta": "text", "reasoning_delta": "text", "tool_arguments_delta": "delta"}


def wire_name(kind: str) -> str:
    """`tool_started` as clients see it: `tool.started`."""
    return kind.replace("_", ".")


def sanitised(draft: event_pb2.EventDraft) -> event_pb2.EventDraft:
    """A copy without unknown fields and with control characters replaced in every text (events, Bounds)."""
    copy = event_pb2.EventDraft()
    copy.CopyFrom(draft)
    # A field this version does not know is content that nobody checked.
    copy.DiscardUnknownFields()
    _clean(copy.payload)
    return copy


def _clean(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if not field.is_repeated:
                if not text.is_clean(value):
                    setattr(message, field.name, text.cleaned(value))
            elif any(not text.is_clean(item) for item in value):
                value[:] = [text.cleaned(item) for item in value]
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                _clean_map(value)
            elif field.is_repeated:
                for item in value:
                    _clean(item)
            else:
                _clean(value)


def _clean_map(members: dict[str, Message]) -> None:
    # The only maps inside events are the members of a Struct.
    for name in [name for name in members if not text.is_clean(name)]:
        value = type(members[name])()
        value.CopyFrom(members[name])
        del members[name]
        members[text.cleaned(name)].CopyFrom(value)
    for value in members.values():
        _clean(value)


def check(draft: event_pb2.EventDraft, kind: str, limits: EventLimits) -> None:
    """Raises ProtocolViolation (rule 7) unless the draft, taken by itself, may enter a log."""
    if draft.ByteSize() > limits.event_bytes:
        raise ProtocolViolation(7, "too_large", f"{wire_name(kind)} is over {limits.event_bytes} bytes")
    _check_structures(draft.payload, kind, limits)
    if violations := protovalidate.collect_violations(draft):
        # Only the path of the field is told; the value is the event's content.
        path = violations[0].proto.field
        where = ".".join(element.field_name for element in path.elements) if path is not None else "the event"
        raise ProtocolViolation(7, "malformed", f"{wire_name(kind)} is malformed at {where}")
    if draft.native_session_id and kind != "session_updated":
        raise ProtocolViolation(7, "private_field", f"{wire_name(kind)} carries a native session id")
    if draft.HasField("pending_head") and kind not in ("run_completed", "run_interrupted"):
        raise ProtocolViolation(7, "private_field", f"{wire_name(kind)} carries a pending state")
    if extra := _EXTRA_CHECKS.get(kind):
        extra(draft)


def _check_structures(payload: payload_pb2.EventPayload, kind: str, limits: EventLimits) -> None:
    metadata = {"depth": limits.metadata_depth, "keys": limits.metadata_keys}
    what = wire_name(kind)
    if kind == "tool_started" and payload.tool_started.HasField("arguments"):
        check_struct(payload.tool_started.arguments, f"{what} arguments", max_bytes=limits.arguments_bytes, **metadata)
    elif kind == "tool_completed" and payload.tool_completed.HasField("result"):
        result = payload.tool_completed.result
        check_value(result, f"{what} result", depth=limits.result_depth, max_bytes=limits.result_bytes)
    elif kind == "interrupt_requested":
        for approval in payload.interrupt_requested.tool_approvals:
            check_struct(approval.arguments, f"{what} arguments", max_bytes=limits.arguments_bytes, **metadata)
    elif kind == "warning" and payload.warning.HasField("details"):
        check_struct(payload.warning.details, f"{what} details", max_bytes=limits.event_bytes, **metadata)
    elif kind == "provider_metadata" and payload.provider_metadata.HasField("metadata"):
        check_struct(payload.provider_metadata.metadata, f"{what} metadata", max_bytes=limits.event_bytes, **metadata)
    elif kind == "usage_updated" and not math.isfinite(payload.usage_updated.cost):
        raise ProtocolViolation(7, "not_finite", f"{what} has a cost that is not finite")


def _session_updated(draft: event_pb2.EventDraft) -> None:
    if not draft.native_session_id:
        raise ProtocolViolation(7, "malformed", "session.updated carries no native session id")


def _tool_completed(draft: event_pb2.EventDraft) -> None:
    completed = draft.payload.tool_completed
    if completed.HasField("error") != (completed.outcome == payload_pb2.TOOL_OUTCOME_ERROR):
        raise ProtocolViolation(7, "malformed", "tool.completed has an error exactly if its outcome is `error`")
    if completed.result_ref and completed.HasField("result"):
        raise ProtocolViolation(7, "malformed", "tool.completed has both a result and a reference to one")


def _interrupt_requested(draft: event_pb2.EventDraft) -> None:
    requested = draft.payload.interrupt_requested
    form = requested.interrupt_type == payload_pb2.INTERRUPT_TYPE_FORM_INPUT
    if form != bool(requested.fields) or form == bool(requested.tool_approvals):
        raise ProtocolViolation(
            7, "malformed", "interrupt.requested has either form fields or tool approvals, by its type"
        )
    names = [field.name for field in requested.fields] or [call.tool_call_id for call in requested.tool_approvals]
    if len(set(names)) != len(names):
        raise ProtocolViolation(7, "malformed", "interrupt.requested names a field or call twice")
    if any(field.type == payload_pb2.FORM_FIELD_TYPE_CHOICE and not field.options for field in requested.fields):
        raise ProtocolViolation(7, "malformed", "interrupt.requested has a choice without options")


_EXTRA_CHECKS: dict[str, Callable[[event_pb2.EventDraft], None]] = {
    "session_updated": _session_updated,
    "tool_completed": _tool_completed,
    "interrupt_requested": _interrupt_requested,
}
