"""One failure of each of the eleven categories from an adapter through every hop to a person: host, log, run, REST, gRPC, encodings, command (I22)."""

import json
import math

import grpc
import grpc.aio
import orjson
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.sdk import errors, events
from cli.feed import RunEvent
from cli.output import Output
from cli.run_view import run_view
from harness.common.v1 import blueprint_pb2, error_pb2
from harness.event.v1 import payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_service_pb2
from services.common.errors import REASON_OF_CATEGORY, TABLE, Category, HarnessError, http_status
from services.common.status import from_rpc_error, from_status, to_status
from services.gateway.encodings.encoding import Encoding
from services.gateway.envelope import failure
from services.gateway.event_view import event_json
from services.runs import ending, intent
from services.runs.answer import Answer
from services.runs.run import Status, tombstone
from services.runs.run import ended as ended_run
from services.runs.segmenting import Packer, Tail
from tests.adapters.scripted import steered, three

TIME = Timestamp(seconds=1)
CANARY = "canary-5b2e"
CATEGORIES = sorted(errors.ERRORS_BY_CATEGORY)
# Contract, Error contract: what is retryable unless the adapter says otherwise. Timeout and persistence are the adapter's policy.
RETRYABLE = {"capacity", "throttled", "unavailable"}
PROTOCOLS = (
    blueprint_pb2.STREAM_PROTOCOL_CANONICAL,
    blueprint_pb2.STREAM_PROTOCOL_AGUI,
    blueprint_pb2.STREAM_PROTOCOL_CUSTOM,
)
EFFECTS = {errors.NO_SIDE_EFFECTS: "none", errors.POSSIBLE_SIDE_EFFECTS: "possible", errors.KNOWN_SIDE_EFFECTS: "known"}


def value_of(category):
    return error_pb2.ErrorCategory.Value(f"ERROR_CATEGORY_{category.upper()}")


def logged(draft):
    """The terminal as the log keeps it, and the run record that follows."""
    packer = Packer("run-1", Tail())
    packer.start(payload_pb2.RunStarted(harness_id="steered", agent_version=1, binding_id="b"), TIME)
    packer.check_terminal(draft)
    packer.end(ending.with_known_effects(draft, known=packer.effects_known), Status.FAILED.value, TIME)
    packed = []
    while (one := packer.take()) is not None:
        packed.append(one)
    run = tombstone("run-1", "b", 1, 0, 0)
    tail = packed[-1].tail
    run = ended_run(run, Status(tail.terminal_status), last_sequence=tail.last_sequence, error_code=tail.error_code,
                    now=1, retention_ms=1)  # fmt: skip
    return run_service_pb2.WatchRunResponse.FromString(packed[-1].packed).events[-1], run, packed


def shown_to_people(event, capsys):
    view = run_view(Output(as_json=False))
    shown = event_json(event)
    view.show(RunEvent("run-1", shown["sequence"], shown["event_type"], shown["data"]))
    return capsys.readouterr().err


def rest_answer(event):
    """What `invoke` answers: over gRPC and back, then as HTTP."""
    answer = Answer("run-1")
    assert answer.take([event])
    with pytest.raises(HarnessError) as caught:
        answer.response()
    crossed = from_status(to_status(caught.value))
    return crossed, failure(crossed)


def test_the_categories_are_the_same_everywhere():
    in_contract = {name.removeprefix("ERROR_CATEGORY_").lower() for name in error_pb2.ErrorCategory.keys()}  # noqa: SIM118 - an enum
    assert in_contract - {"unspecified"} == set(CATEGORIES) == {each.value for each in Category}
    assert len(CATEGORIES) == 11
    for name, error in errors.ERRORS_BY_CATEGORY.items():
        assert error.category == value_of(name)
        if name not in ("timeout", "persistence"):
            assert error.default_retryable == (name in RETRYABLE)
        assert TABLE[REASON_OF_CATEGORY[Category(name)]].category == name


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("category", CATEGORIES)
async def test_i22_a_failure_crosses_every_hop_with_its_category_retry_interval_and_side_effects(
    category, effects, capsys
):
    error = errors.ERRORS_BY_CATEGORY[category](
        f"The {category} sentence.",
        code=f"own_{category}",
        retryable=True,
        retry_after=2.5,
        side_effects=effects,
        provider_code=f"P-{CANARY}",
        diagnostic=f"diagnostic {CANARY}",
    )

    async def play(turn):
        yield events.text("a")
        raise error

    _, context = steered(play)
    async with context as client:
        draft = (await client.turn("x"))[-1]
    event, run, packed = logged(draft)
    # The event, as the log has it.
    failed = event.payload.run_failed
    assert (failed.category, failed.code, failed.message) == (value_of(category), f"own_{category}", error.message)
    assert (failed.retryable, failed.retry_after_seconds, failed.side_effect_status) == (True, 3, effects)
    # The run record.
    assert (run.status, run.error_code) == (Status.FAILED, f"own_{category}")
    # REST and SSE, in every encoding.
    data = event_json(event)["data"]
    assert data == {
        "code": f"own_{category}", "category": category, "message": error.message, "retryable": True,
        "side_effect_status": EFFECTS[effects], "retry_after_seconds": 3,
    }  # fmt: skip
    for protocol in PROTOCOLS:
        frames = Encoding(protocol, "c").encoder().encode(event)
        for said in (category, f"own_{category}", EFFECTS[effects], error.message):
            assert said.encode() in frames
        assert CANARY.encode() not in frames
    # The answer of a whole run, over gRPC and as HTTP.
    crossed, reply = rest_answer(event)
    assert crossed.category is Category(category)
    assert (crossed.message, crossed.retryable, crossed.retry_after) == (error.message, True, 3.0)
    body, headers = orjson.loads(reply.body), dict(reply.headers)
    assert (reply.status, body["code"]) == (http_status(crossed), REASON_OF_CATEGORY[Category(category)].value)
    assert body["error"] == error.message
    assert body["details"][-1]["side_effect_status"] == EFFECTS[effects]
    assert body["details"][-1]["code"] == f"own_{category}"
    assert headers[b"retry-after"] == b"3"
    # The command.
    said = shown_to_people(event, capsys)
    assert f"failed: {error.message} (own_{category}, {category}) It may succeed later, in 3 s." in said
    assert ("Effects outside are possible." in said) == (effects == errors.POSSIBLE_SIDE_EFFECTS)
    assert ("There were effects outside." in said) == (effects == errors.KNOWN_SIDE_EFFECTS)
    everything = [part.packed for part in packed] + [reply.body, json.dumps(data).encode(), said.encode()]
    assert not any(CANARY.encode() in part for part in everything)


@pytest.mark.parametrize("category", CATEGORIES)
async def test_i22_a_failure_before_a_run_began_becomes_the_runs_with_its_category_and_interval(category):
    error = errors.ERRORS_BY_CATEGORY[category](
        f"{CANARY}: a harness's own words.", code=f"own_{category}", retry_after=2.5, diagnostic=CANARY
    )
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        adapter.initialize_error = error
        request = runtime_service_pb2.InitializeRequest(fence=client.fence())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.runtime.Initialize(request)
    crossed = from_rpc_error(caught.value)
    assert crossed.category is Category(category)
    told = ending.failure_of(crossed)
    assert (told.category, told.retryable) == (category, error.retryable)
    assert told.retry_after_seconds in (2, 3)
    # It was never issued: nothing can have happened.
    terminal = ending.terminal_of_intent(intent.failed(told, 0), ending.side_effects(issued=False, known=False))
    event, run, _ = logged(terminal)
    failed = event.payload.run_failed
    assert (failed.category, failed.side_effect_status) == (value_of(category), errors.NO_SIDE_EFFECTS)
    assert failed.retryable == error.retryable
    assert run.error_code == failed.code
    assert CANARY.encode() not in event.SerializeToString()


def strange(text):
    return [
        errors.InternalError(text, code=text, provider_code=text, diagnostic=text),
        errors.ThrottledError("ok", retry_after=math.inf),
        errors.ThrottledError("ok", retry_after=-1.0),
        errors.CapacityError("ok", retry_after=math.nan),
        errors.CapacityError("ok", retry_after=1e12),
        ValueError(text),
        ExceptionGroup("group", [ValueError(text)]),
    ]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=3000), st.integers(0, 6), st.booleans())
def test_i22_whatever_is_raised_ends_in_a_failure_the_contract_admits(text, which, showed):
    error = strange(text)[which]
    draft = errors.failed_draft(errors.classified(error), showed_output=showed)
    event, _, _ = logged(draft)  # refuses what breaks the contract
    rest_answer(event)
    if not isinstance(error, errors.HarnessError):
        assert event.payload.run_failed.code == "adapter_defect"
        assert event.payload.run_failed.message == "The harness failed unexpectedly."
