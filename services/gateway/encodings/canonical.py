"""The canonical encoding: every event is one frame, `id: <sequence>`, `event: <type>`, `data: <json of data>` (events, "Envelope")."""

# pyright: standard
# Payloads are known by their descriptors only, so their fields are untyped here.

import orjson

from harness.event.v1 import event_pb2
from services.gateway.event_view import WIRE_NAMES, event_data

_FRAME_NAMES: dict[str, bytes] = {kind: name.encode("ascii") for kind, name in WIRE_NAMES.items()}
_dumps = orjson.dumps


def frame(event: event_pb2.Event) -> bytes:
    """One SSE frame."""
    payload = event.payload
    kind = payload.WhichOneof("kind")
    # Deltas are nearly all there is; the general way costs several times as much.
    if (kind == "content_delta" or kind == "reasoning_delta") and not event.namespace:
        delta = payload.content_delta if kind == "content_delta" else payload.reasoning_delta
        text = delta.text
        data = {"message_id": delta.message_id, "text": text} if text else {"message_id": delta.message_id}
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence, _FRAME_NAMES[kind], _dumps(data))
    name, general = event_data(event)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence, name.encode("ascii"), _dumps(general))


class CanonicalEncoder:
    """A frame depends on its event alone."""

    __slots__ = ()
    cursor: None = None
    encode = staticmethod(frame)
