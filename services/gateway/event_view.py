"""Events as REST and SSE show them (events, "Vocabulary"). A pure function of the event, so every replica and replay gives the same bytes (I8).

`data` leaves out what is absent or empty; numbers and booleans that cannot be absent are always there. `subagent.started` and `subagent.completed`
stay themselves and, inside another subagent, carry its `namespace`; any other event with a namespace is shown as `subagent.event`.
"""

# pyright: standard
# Payloads are known by their descriptors only, so their fields are untyped here.

from typing import Any

from harness.event.v1 import event_pb2, payload_pb2
from services.gateway.codec.encode import Encoder, message_encoder, register, timestamp_json

_KINDS = payload_pb2.EventPayload.DESCRIPTOR.oneofs_by_name["kind"].fields
WIRE_NAMES: dict[str, str] = {field.name: field.name.replace("_", ".") for field in _KINDS}
TERMINAL_KINDS = frozenset(("run_completed", "run_interrupted", "run_cancelled", "run_failed"))
_ENCODERS: dict[str, Encoder] = {field.name: message_encoder(field.message_type, sparse=True) for field in _KINDS}
_SUBAGENT_KINDS = ("subagent_started", "subagent_completed")


def payload_data(payload: payload_pb2.EventPayload, kind: str) -> dict[str, Any]:
    """The data of a payload by itself, whatever its namespace."""
    return _ENCODERS[kind](getattr(payload, kind))


def event_data(event: event_pb2.Event) -> tuple[str, Any]:
    """The public type and data of an event."""
    kind = event.payload.WhichOneof("kind")
    if kind is None:
        # A kind of a newer contract: shown by position, so that no sequence is ever missing (I7).
        return "unknown", {}
    data = payload_data(event.payload, kind)
    if not event.namespace:
        return WIRE_NAMES[kind], data
    namespace = list(event.namespace)
    if kind in _SUBAGENT_KINDS:
        return WIRE_NAMES[kind], {**data, "namespace": namespace}
    return "subagent.event", {"namespace": namespace, "event_type": WIRE_NAMES[kind], "data": data}


def is_terminal(event: event_pb2.Event) -> bool:
    """Whether nothing follows it."""
    return event.payload.WhichOneof("kind") in TERMINAL_KINDS


def event_json(event: event_pb2.Event) -> dict[str, Any]:
    """One event of a JSON page."""
    name, data = event_data(event)
    return {
        "run_id": event.run_id,
        "sequence": event.sequence,
        "event_type": name,
        "data": data,
        "created_at": timestamp_json(event.time) if event.HasField("time") else None,
    }


register(event_pb2.Event.DESCRIPTOR.full_name, event_json)
