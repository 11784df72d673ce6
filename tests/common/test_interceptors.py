"""Every RPC kind, through the one interceptor, over a real socket."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from services.common import metrics, tracing
from services.common.caller import Capability
from services.common.errors import HarnessError, Reason
from services.common.interceptors import ServiceAuthenticator, ServiceInterceptor
from services.common.server import Listener
from services.common.status import from_rpc_error
from tests.common.conftest import TOKENS, Keys, StartToy, Toy, service_logs
from tests.common.toy import CANARY, SERVICE, Ask, Item

KINDS = ["one", "many", "collect", "chat"]
GOOD_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def once(item: Any) -> AsyncIterator[Any]:
    yield item


async def silent() -> AsyncIterator[Any]:
    """A client's stream that says nothing: a call refused while it is being written to can end for the client in the failed write
    instead of in the refusal.
    """
    await asyncio.Event().wait()
    yield


async def ask(
    toy: Toy, kind: str, request: Any, metadata: tuple[tuple[str, str | bytes], ...], timeout: float | None = 20
) -> list[Any]:
    """The answers of one call of the given kind, with exactly this metadata. Without a request a client's stream stays silent."""
    streams = kind in ("collect", "chat")
    argument = request if not streams else silent() if request is None else once(request)
    call = getattr(toy.stub, kind)(argument, metadata=metadata, timeout=timeout)
    try:
        return [message async for message in call] if kind in ("many", "chat") else [await call]
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def bearer(token: str = TOKENS[0].get_secret_value()) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


# --- auth ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", [token.get_secret_value() for token in TOKENS])
async def test_any_of_the_tokens_opens(toy: Toy, kind: str, token: str) -> None:
    answers = await ask(toy, kind, Ask(do="echo", count=1), (bearer(token), ("harness-subject", "alice")))
    assert [answer.subject for answer in answers] == ["alice"]


REFUSED: dict[str, tuple[tuple[str, str], ...]] = {
    "nothing": (),
    "empty": (("authorization", ""),),
    "no scheme": (("authorization", TOKENS[0].get_secret_value()),),
    "other scheme": (("authorization", "Basic " + TOKENS[0].get_secret_value()),),
    "wrong": (bearer("wrong-token-0123456789"),),
    "prefix": (bearer(TOKENS[0].get_secret_value()[:-1]),),
    "longer": (bearer(TOKENS[0].get_secret_value() + "x"),),
    "both joined": (bearer(",".join(token.get_secret_value() for token in TOKENS)),),
    "twice": (bearer(), bearer()),
    "subject alone": (("harness-subject", "alice"),),
    "two subjects": (bearer(), ("harness-subject", "alice"), ("harness-subject", "bob")),
    "empty subject": (bearer(), ("harness-subject", "")),
    "long subject": (bearer(), ("harness-subject", "s" * 257)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", REFUSED)
async def test_i2_other_credentials_are_refused(toy: Toy, kind: str, case: str) -> None:
    with pytest.raises(HarnessError) as caught:
        await ask(toy, kind, None if kind in ("collect", "chat") else Ask(do="echo", count=1), REFUSED[case])
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert "token-0123456789" not in str(caught.value)


async def test_the_credential_is_checked_before_the_request(toy: Toy) -> None:
    with pytest.raises(HarnessError) as caught:
        await ask(toy, "one", Ask(count=9999), ())
    assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_callers_of_concurrent_calls_are_not_mixed(toy: Toy) -> None:
    names = [f"subject-{number}" for number in range(100)]
    answers = await asyncio.gather(*(toy.peer.call(toy.stub.one, Ask(do="echo"), subject=name) for name in names))
    assert [answer.subject for answer in answers] == names
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).subject == ""


async def test_an_unknown_method_is_unimplemented(toy: Toy) -> None:
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.peer.channel.unary_unary(f"/{SERVICE}/Absent"), b"")
    assert caught.value.reason is Reason.UNIMPLEMENTED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_facade_takes_capabilities_alone(start_toy: StartToy, keys: Keys, kind: str) -> None:
    toy = await start_toy(keys.authenticator(), token=None)
    token = keys.signer.sign(Capability(SERVICE, "bnd_1", 1, 1, "run_7"), deadline_at=4e9)
    answers = await ask(toy, kind, Ask(do="echo", count=1), (bearer(token), ("harness-subject", "mallory")))
    assert [answer.subject for answer in answers] == ["run_7"]  # the capability's run: the subject counts for nothing
    elsewhere = keys.signer.sign(Capability("harness.other.v1", "bnd_1", 1, 1, "run_7"), deadline_at=4e9)
    for metadata in ((), (bearer(),), (bearer(elsewhere),), (bearer(token[:-8] + "AAAAAAAA"),)):
        with pytest.raises(HarnessError) as caught:
            await ask(toy, kind, Ask(do="echo", count=1), metadata)
        assert caught.value.reason is Reason.UNAUTHENTICATED


def test_an_internal_listener_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ServiceAuthenticator([])


# --- validation ---


@pytest.mark.parametrize("kind", KINDS)
async def test_all_field_problems_at_once(toy: Toy, kind: str) -> None:
    request = Ask(do="", count=2000, items=[Item(name="fine"), Item()], labels={'a "b"': Item()})
    with pytest.raises(HarnessError) as caught:
        await ask(toy, kind, request, (bearer(),))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert {(issue.path, issue.code) for issue in caught.value.details} == {
        ("do", "string.min_len"),
        ("count", "int32.lte"),
        ("items[1].name", "string.min_len"),
        ('labels["a \\"b\\""].name', "string.min_len"),
    }
    assert all(issue.message for issue in caught.value.details)


@pytest.mark.parametrize("kind", KINDS)
async def test_i22_bytes_that_are_no_message_are_a_field_problem(toy: Toy, kind: str) -> None:
    shape = {"one": "unary_unary", "many": "unary_stream", "collect": "stream_unary", "chat": "stream_stream"}[kind]
    raw = SimpleNamespace(**{kind: getattr(toy.peer.channel, shape)(f"/{SERVICE}/{kind.title()}")})
    with pytest.raises(HarnessError) as caught:
        await ask(dataclasses.replace(toy, stub=cast("Any", raw)), kind, b"\xff\xff", (bearer(),))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [issue.code for issue in caught.value.details] == ["malformed_message"]


async def test_i35_a_flood_of_field_problems_is_bounded_and_still_arrives(toy: Toy) -> None:
    labels = {f"{'k' * 300}{number}": Item() for number in range(1000)}
    with pytest.raises(HarnessError) as caught:
        await ask(toy, "one", Ask(do="echo", labels=labels), (bearer(),))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert len(caught.value.details) == 100


async def test_every_message_of_a_stream_is_checked(toy: Toy) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield Ask(do="echo")
        yield Ask(do="")

    seen: list[str] = []

    async def read() -> None:
        async for answer in toy.peer.stream(toy.stub.chat, requests(), timeout=20):
            seen.append(answer.text)

    with pytest.raises(HarnessError) as caught:
        await read()
    assert (seen, caught.value.reason) == (["echo"], Reason.INVALID_REQUEST)


# --- errors ---


@pytest.mark.parametrize("kind", KINDS)
async def test_a_classified_error_arrives_whole(toy: Toy, kind: str) -> None:
    with pytest.raises(HarnessError) as caught:
        await ask(toy, kind, Ask(do="harness_error", count=1), (bearer(),))
    error = caught.value
    assert (error.reason, error.message) == (Reason.HARNESS_SESSION_CONFLICT, "A run is active.")
    assert (error.metadata, error.retry_after, error.retryable) == ({"run_id": "run_1"}, 1.5, True)


@pytest.mark.parametrize("reason", Reason)
async def test_every_reason_arrives_with_its_code(toy: Toy, reason: Reason) -> None:
    call = toy.stub.one(Ask(do=f"raise:{reason.value}"), metadata=(bearer(),), timeout=20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = from_rpc_error(caught.value)
    assert error.reason is reason
    assert caught.value.code().value[0] == error.grpc_code.value
    assert caught.value.details() == "said so"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("do", ["crash", "crash_chained"])
async def test_i22_an_unexpected_exception_shows_an_incident_and_nothing_else(
    toy: Toy, kind: str, do: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argument = once(Ask(do=do)) if kind in ("collect", "chat") else Ask(do=do, count=1)
    call = getattr(toy.stub, kind)(argument, metadata=(bearer(),), timeout=20)
    with service_logs(), pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [message async for message in call] if kind in ("many", "chat") else await call
    error = from_rpc_error(caught.value)
    assert error.reason is Reason.INTERNAL
    assert set(error.metadata) == {"incident_id"}
    assert CANARY not in repr((caught.value, caught.value.trailing_metadata(), caught.value.debug_error_string()))
    logged = capsys.readouterr().err
    assert CANARY not in logged
    entry = next(
        line
        for line in map(json.loads, logged.splitlines())
        if line.get("incident_id") == error.metadata["incident_id"]
    )
    assert entry["error"]["type"] == ("builtins.RuntimeError" if do == "crash" else "builtins.KeyError")
    assert any("toy.py" in place for place in entry["error"]["at"])


async def test_a_servicers_own_abort_passes(toy: Toy) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await toy.stub.one(Ask(do="abort"), metadata=(bearer(),), timeout=20)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "said by the servicer")


# --- deadlines and cancellation ---


@pytest.mark.parametrize("kind", ["one", "collect"])
async def test_i35_a_unary_call_without_a_deadline_gets_one(start_toy: StartToy, kind: str) -> None:
    toy = await start_toy(default_deadline_seconds=0.05)
    with pytest.raises(HarnessError) as caught:
        await ask(toy, kind, Ask(do="hang"), (bearer(),), timeout=None)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert "0.05 seconds" in caught.value.message
    await toy.servicer.ended.wait()


async def test_a_stream_without_a_deadline_has_none(start_toy: StartToy) -> None:
    toy = await start_toy(default_deadline_seconds=0.000_001)
    assert len(await ask(toy, "many", Ask(do="echo", count=50), (bearer(),), timeout=None)) == 50


async def test_a_callers_deadline_ends_the_work(start_toy: StartToy) -> None:
    toy = await start_toy()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=0.2)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    await toy.servicer.ended.wait()


async def test_a_servicers_own_timeout_is_an_incident_not_a_deadline(toy: Toy) -> None:
    with pytest.raises(HarnessError) as caught:
        await ask(toy, "one", Ask(do="raise_timeout"), (bearer(),), timeout=None)
    assert caught.value.reason is Reason.INTERNAL


async def test_a_caller_that_goes_away_ends_the_stream_at_once(toy: Toy) -> None:
    async with aclosing(toy.peer.stream(toy.stub.many, Ask(do="endless"), timeout=None)) as messages:
        assert (await anext(messages)).text.startswith("x")
    await toy.servicer.ended.wait()


async def test_a_cancelled_caller_cancels_the_call(toy: Toy) -> None:
    task = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="hang")))
    await toy.servicer.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await toy.servicer.ended.wait()


# --- tracing ---


@pytest.mark.parametrize("kind", KINDS)
async def test_a_trace_of_the_exact_shape_is_kept(toy: Toy, kind: str) -> None:
    answers = await ask(toy, kind, Ask(do="echo", count=1), (bearer(), ("traceparent", GOOD_TRACE)))
    assert answers[0].traceparent == GOOD_TRACE


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("",),
        (GOOD_TRACE.upper(),),
        ("01" + GOOD_TRACE[2:],),
        (GOOD_TRACE + "-extra",),
        (" " + GOOD_TRACE,),
        (GOOD_TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),),
        (GOOD_TRACE.replace("b7ad6b7169203331", "0" * 16),),
        (CANARY,),
    ],
)
async def test_any_other_trace_is_replaced(toy: Toy, given: tuple[str, ...]) -> None:
    answers = await ask(toy, "one", Ask(do="echo"), (bearer(), *(("traceparent", value) for value in given)))
    assert answers[0].traceparent not in given
    assert len(answers[0].traceparent) == len(GOOD_TRACE)


# --- metrics ---


@pytest.mark.parametrize(("do", "code"), [("echo", "OK"), ("harness_error", "ABORTED"), ("crash", "INTERNAL")])
async def test_calls_are_counted_by_method_and_code(toy: Toy, do: str, code: str) -> None:
    def count() -> float:
        return metrics.RPC_HANDLED.labels(f"/{SERVICE}/One", code)._value.get()  # there is no public way to read it

    before = count()
    call = toy.stub.one(Ask(do=do), metadata=(bearer(),), timeout=20)
    assert (await call.code()).name == code
    assert count() == before + 1
    assert f'method="/{SERVICE}/One"'.encode() in metrics.render()


# --- spans ---


async def test_spans_join_the_trace_and_hold_no_text(toy: Toy, request: pytest.FixtureRequest) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use_provider(provider)
    request.addfinalizer(tracing.shutdown)
    answers = await ask(toy, "one", Ask(do="echo"), (bearer(), ("traceparent", GOOD_TRACE)))
    with pytest.raises(HarnessError):
        await ask(toy, "many", Ask(do="crash", count=1), (bearer(), ("traceparent", GOOD_TRACE)))
    spans: tuple[Any, ...] = exporter.get_finished_spans()
    unary, stream = spans
    assert f"{unary.context.trace_id:032x}" == GOOD_TRACE[3:35]
    assert f"{unary.parent.span_id:016x}" == GOOD_TRACE[36:52]
    assert answers[0].traceparent == f"00-{unary.context.trace_id:032x}-{unary.context.span_id:016x}-01"
    assert stream.attributes["harness.error.category"] == "internal"
    assert CANARY not in unary.to_json() + stream.to_json()


# --- health ---


async def test_health_needs_no_credential_and_its_watch_ends_with_the_server(folder: Path) -> None:
    interceptor = ServiceInterceptor(
        ServiceAuthenticator([SecretStr("token-0123456789ab")]), default_deadline_seconds=30
    )
    listener = Listener(
        "HARNESS_LISTEN", f"unix:{folder}/health.sock", interceptor, max_concurrent_rpcs=10, socket_mode=0o600
    )
    servicer: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - set at run time
    health_pb2_grpc.add_HealthServicer_to_server(servicer, listener.server)
    address = listener.bind()
    await listener.server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="absent"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        # The grace is far longer than a test may take: only ending the watch lets the stop return.
        await listener.stop(10_000)
