"""What all encodings have in common, over random logs that the lifecycle of a run accepted."""

import copy
import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from adapters.sdk import events as drafts
from adapters.sdk.lifecycle import ProtocolViolation, RunLifecycle, public_payload
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import event_pb2, payload_pb2
from services.gateway.encodings import Encoder, Encoding
from services.gateway.encodings.agui import AguiEncoder
from services.gateway.encodings.custom import CustomEncoder
from services.gateway.sse.ring import MIN_CHUNKS, Ring

CANONICAL = Encoding(blueprint_pb2.STREAM_PROTOCOL_CANONICAL)
AGUI = Encoding(blueprint_pb2.STREAM_PROTOCOL_AGUI, "conversation-1")
CUSTOM = Encoding(blueprint_pb2.STREAM_PROTOCOL_CUSTOM, "conversation-1")
ALL = [CANONICAL, AGUI, CUSTOM]
OTHERS = [AGUI, CUSTOM]


def made(kind: str, namespace: tuple[str, ...] = (), **fields: Any) -> event_pb2.EventDraft:
    """A draft of what adapters have no constructor for; enums as numbers."""
    payload = json_format.ParseDict({kind: fields}, payload_pb2.EventPayload())
    return event_pb2.EventDraft(namespace=namespace, payload=payload)


STARTED = made("run_started", harness_id="toy", agent_version=3, binding_id="bnd_1")


def log_of(*told: event_pb2.EventDraft, machine: RunLifecycle | None = None) -> list[event_pb2.Event]:
    """The log of a run that drafted this; what the lifecycle refuses is left out."""
    machine = machine or RunLifecycle(at_log=True)
    accepted = [STARTED]
    for draft in told:
        try:
            accepted += machine.accept(draft)
        except ProtocolViolation:
            continue
    events = []
    for sequence, draft in enumerate(accepted, 1):
        event = event_pb2.Event(
            version=1, run_id="run_1", sequence=sequence, namespace=draft.namespace, payload=public_payload(draft)
        )
        event.time.FromMilliseconds(1_900_000_000_000 + sequence)
        events.append(event)
    return events


def parse(body: bytes) -> list[tuple[int | None, str | None, Any]]:
    """Frames of any encoding: id, event name, data."""
    assert not body or body.endswith(b"\n\n")
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert set(lines) <= {"id", "event", "data"}
        found.append((int(lines["id"]) if "id" in lines else None, lines.get("event"), json.loads(lines["data"])))
    return found


def encode(encoding: Encoding, events: list[event_pb2.Event]) -> list[bytes]:
    encoder = encoding.encoder()
    return [encoder.encode(event) for event in events]


_IDS = st.sampled_from(["a", "b", "c"])
_NAMESPACES = st.sampled_from([(), (), (), ("s1",), ("s1", "s2")])
_TEXTS = st.text(max_size=8) | st.just("line\n\ndata: x\nid: 9\n")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(st.text(max_size=3), _JSON, max_size=2)
_COUNTS = st.none() | st.integers(0, 9)
_OUTCOMES = st.sampled_from([1, 2, 3, 4])
_APPROVAL = st.fixed_dictionaries(
    {
        "tool_call_id": st.sampled_from(["p", "q"]),
        "tool_name": st.just("t"),
        "arguments": _OBJECTS,
        "allowed": st.just([1, 2]),
    }
)
_FIELD = st.builds(
    lambda name, kind, required: {
        "name": name,
        "type": kind,
        "required": required,
        "label": name.upper(),
        "options": ["x"] if kind == 4 else [],
    },
    st.sampled_from(["f", "g"]),
    st.sampled_from([1, 2, 3, 4]),
    st.booleans(),
)


def _interrupt(fields: list[Any], approvals: list[Any], prompt: str, namespace: tuple[str, ...]) -> Any:
    kind = {"interrupt_type": 1, "fields": fields} if fields else {"interrupt_type": 2, "tool_approvals": approvals}
    return made("interrupt_requested", namespace, interrupt_id="i1", revision=1, prompt=prompt, **kind)


_TERMINALS = st.sampled_from(
    [
        drafts.completed(),
        made("run_interrupted", interrupt_id="i1", reason="Waits."),
        made("run_cancelled", reason=1, side_effect_status=2),
        made(
            "run_failed",
            code="provider_overloaded",
            category=4,
            message="Later.",
            retryable=True,
            side_effect_status=1,
            retry_after_seconds=0,
        ),
    ]
)
DRAFTS = st.one_of(
    st.builds(lambda body, name, ns: drafts.text(body, message_id=name, namespace=ns), _TEXTS, _IDS, _NAMESPACES),
    st.builds(lambda body, name, ns: drafts.reasoning(body, message_id=name, namespace=ns), _TEXTS, _IDS, _NAMESPACES),
    st.builds(
        lambda name, arguments, parent, ns: drafts.tool_started(
            name, "tool", arguments, parent_message_id=parent, namespace=ns
        ),
        st.sampled_from("uvwxyz"),
        st.none() | _OBJECTS,
        st.sampled_from(["", "a"]),
        _NAMESPACES,
    ),
    st.builds(
        lambda name, text, ns: drafts.tool_arguments(name, text, namespace=ns),
        st.sampled_from("uvwxyz"),
        st.sampled_from(["{}", '{"a":', "1}", "no"]),
        _NAMESPACES,
    ),
    st.builds(
        lambda name, result, ns: drafts.tool_succeeded(name, result, namespace=ns),
        st.sampled_from("uvwxyz"),
        _JSON,
        _NAMESPACES,
    ),
    st.builds(
        lambda name, ns: drafts.tool_failed(name, "boom", "It failed.", namespace=ns),
        st.sampled_from("uvwxyz"),
        _NAMESPACES,
    ),
    st.builds(lambda name: drafts.tool_rejected(name), st.sampled_from("uvwxyz")),
    st.builds(
        lambda name, ns: drafts.subagent_started(name, "u", "Sub", namespace=ns),
        st.sampled_from(["s1", "s2"]),
        _NAMESPACES,
    ),
    st.builds(
        lambda name, outcome, ns: drafts.subagent_completed(name, "u", outcome, namespace=ns),
        st.sampled_from(["s1", "s2"]),
        _OUTCOMES,
        _NAMESPACES,
    ),
    st.builds(
        lambda i, o, c, cost, ns: drafts.usage(
            input_tokens=i, output_tokens=o, cached_input_tokens=c, cost=cost, currency="EUR", namespace=ns
        ),
        _COUNTS,
        _COUNTS,
        _COUNTS,
        st.none() | st.floats(0, 1),
        _NAMESPACES,
    ),
    st.builds(
        lambda details, ns: drafts.warning("slow", "It is slow.", details, namespace=ns),
        st.none() | _OBJECTS,
        _NAMESPACES,
    ),
    st.builds(lambda: drafts.session_updated("native-1")),
)
_INTERRUPTS = st.builds(
    _interrupt,
    st.lists(_FIELD, max_size=2, unique_by=lambda field: field["name"]),
    st.lists(_APPROVAL, min_size=1, max_size=2, unique_by=lambda call: call["tool_call_id"]),
    st.text(max_size=5),
    _NAMESPACES,
)


@st.composite
def logs(draw: st.DrawFn) -> list[event_pb2.Event]:
    """Logs as the log itself would let them through, most with a terminal."""
    told = draw(st.lists(DRAFTS, max_size=40))
    if draw(st.booleans()):
        told.append(draw(_INTERRUPTS))
    return log_of(*told, *draw(st.lists(_TERMINALS, max_size=2)))


@given(log=logs())
def test_the_generator_makes_what_the_properties_are_about(log: list[event_pb2.Event]) -> None:
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    assert log[0].payload.WhichOneof("kind") == "run_started"


@pytest.mark.parametrize("encoding", ALL, ids=["canonical", "agui", "custom"])
@given(log=logs())
def test_i8_a_stream_begun_at_any_cursor_is_the_rest_of_the_whole(
    encoding: Encoding, log: list[event_pb2.Event]
) -> None:
    whole = encode(encoding, log)
    assert whole == encode(encoding, log)
    for cursor in range(len(log) + 1):
        encoder = encoding.encoder()
        for event in log[:cursor]:
            encoder.encode(event)
        assert [encoder.encode(event) for event in log[cursor:]] == whole[cursor:]


@pytest.mark.parametrize("encoding", OTHERS, ids=["agui", "custom"])
@given(log=logs())
def test_an_encoder_is_its_state(encoding: Encoding, log: list[event_pb2.Event]) -> None:
    """An encoder made anew for every event, with a copy of the state, writes the same."""
    whole, state, got = encode(encoding, log), None, []
    for event in log:
        encoder: Any = AguiEncoder("conversation-1", state) if encoding is AGUI else CustomEncoder(state)
        got.append(encoder.encode(event))
        state = copy.deepcopy(encoder.state)
        assert encoder.cursor == event.sequence
    assert got == whole


@pytest.mark.parametrize("encoding", ALL, ids=["canonical", "agui", "custom"])
@given(log=logs())
def test_ids_are_sequences_and_only_the_last_frame_of_an_event_has_one(
    encoding: Encoding, log: list[event_pb2.Event]
) -> None:
    shown = []
    for event, body in zip(log, encode(encoding, log), strict=True):
        ids = [frame[0] for frame in parse(body)]
        if ids:
            assert ids == [None] * (len(ids) - 1) + [event.sequence]
            shown.append(event.sequence)
    assert shown == sorted(set(shown))
    if encoding is CANONICAL:
        assert shown == [event.sequence for event in log]


@pytest.mark.parametrize("encoding", OTHERS, ids=["agui", "custom"])
def test_a_kind_of_a_newer_contract_is_left_out(encoding: Encoding) -> None:
    encoder: Encoder = encoding.encoder()
    assert encoder.encode(event_pb2.Event(sequence=7, namespace=["a"])) == b""
    assert encoder.cursor == 7


@given(log=logs(), start=st.integers(0, 10), write=st.sampled_from([1, 1_000_000]))
def test_the_ring_passes_over_what_an_encoding_leaves_out(log: list[event_pb2.Event], start: int, write: int) -> None:
    whole = encode(CUSTOM, log)
    start = min(start, len(log))
    encoder = CUSTOM.encoder()
    for event in log[:start]:
        encoder.encode(event)
    ring = Ring(start, 1_000_000, encoder.encode)
    for event in log[start:]:
        ring.put([event])
    for cursor in range(start, len(log) + 1):
        got, at = b"", cursor
        while at < ring.head:
            part = ring.read(at, write)
            assert part is not None
            got, at = got + part.body, part.cursor
        assert got == b"".join(whole[cursor:])


def test_i35_a_ring_of_events_that_are_not_shown_is_bounded() -> None:
    ring = Ring(0, 1, lambda event: b"")
    for sequence in range(1, 3 * MIN_CHUNKS):
        ring.put([event_pb2.Event(sequence=sequence)])
    assert ring.head - ring.kept_after == MIN_CHUNKS
    assert ring.read(ring.kept_after - 1, 1) is None
