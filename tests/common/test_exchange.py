"""Unary calls over one stream: everything is as if each had come alone."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pydantic import SecretStr

from harness.exchange.v1 import exchange_service_pb2 as api
from harness.exchange.v1 import exchange_service_pb2_grpc as api_grpc
from services.common import metrics
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason
from services.common.exchange import ExchangeChannel, ExchangeServicer
from services.common.exchange.channel import MAX_REQUEST_BYTES
from services.common.interceptors import ServiceAuthenticator, ServiceInterceptor
from services.common.replicas import cannot_have_run
from services.common.server import server_options
from tests.common.conftest import TOKENS, ToyProcess
from tests.common.toy import CANARY, SERVICE, Ask, Item, ToyServicer, ToyStub, add_toy_servicer_to_server

PATIENCE = 90.0
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
WRONG = SecretStr("not-the-token-0123456789")


@dataclass
class Toy:
    servicer: ToyServicer
    exchange: ExchangeServicer
    peer: Peer
    stub: ToyStub
    exchanged: list[None]
    """One entry for each call that came over an exchange."""


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(
            *,
            offered: bool = True,
            max_calls: int = 1000,
            deadline: float = PATIENCE,
            token: SecretStr = TOKENS[0],
            idempotent_methods: tuple[str, ...] = (),
        ) -> Toy:
            interceptor = ServiceInterceptor(ServiceAuthenticator(TOKENS), default_deadline_seconds=deadline)
            server = grpc.aio.server(interceptors=[interceptor], options=server_options())
            servicer, exchanged = ToyServicer(), list[None]()
            add_toy_servicer_to_server(servicer, server)
            exchange = ExchangeServicer(
                [(add_toy_servicer_to_server, servicer)],
                default_deadline_seconds=deadline,
                max_calls=max_calls,
                called=lambda: exchanged.append(None),
            )
            if offered:
                exchange.add_to(server)
            address = f"unix:{folder}/toy.sock"
            server.add_insecure_port(address)
            await server.start()
            stack.push_async_callback(server.stop, 0)
            peer = connect(address, token, idempotent_methods=idempotent_methods, exchange=True)
            stack.push_async_callback(peer.close)
            return Toy(servicer, exchange, peer, ToyStub(peer.channel), exchanged)

        yield start


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds: nothing tells of it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_a_call_is_answered_with_its_own_subject_and_trace(start: Callable[..., Any]) -> None:
    toy = await start()

    async def ask(name: str) -> tuple[str, str]:
        answer = await toy.peer.call(toy.stub.one, Ask(do=f"echo-{name}"), subject=name)
        return answer.text, answer.subject

    names = [f"subject-{number}" for number in range(300)]
    assert await asyncio.gather(*map(ask, names)) == [(f"echo-{name}", name) for name in names]
    assert len(toy.exchanged) == 300
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).subject == ""
    metadata = [("traceparent", TRACE), *((k, v) for k, v in toy.peer.metadata() if k != "traceparent")]
    assert (await toy.stub.one(Ask(do="echo"), metadata=metadata)).traceparent == TRACE


async def test_i22_failures_are_classified_and_sanitised(start: Callable[..., Any]) -> None:
    toy = await start()
    with pytest.raises(HarnessError) as conflict:
        await toy.peer.call(toy.stub.one, Ask(do="harness_error"))
    assert conflict.value.reason is Reason.HARNESS_SESSION_CONFLICT
    assert (conflict.value.metadata["run_id"], conflict.value.retry_after) == ("run_1", 1.5)
    for crash in ("crash", "crash_chained", "raise_timeout"):
        with pytest.raises(HarnessError) as internal:
            await toy.peer.call(toy.stub.one, Ask(do=crash))
        assert internal.value.reason is Reason.INTERNAL
        assert internal.value.metadata["incident_id"].startswith("inc_")
        assert CANARY not in str(internal.value)
    assert len(toy.exchanged) == 4


async def test_the_constraints_of_the_contract_hold(start: Callable[..., Any]) -> None:
    toy = await start()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(items=[Item()], count=2000))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert {issue.path for issue in caught.value.details} == {"do", "items[0].name", "count"}
    assert len(toy.exchanged) == 1


async def test_bytes_that_are_no_message_are_refused(start: Callable[..., Any]) -> None:
    toy = await start()
    method = toy.peer.channel.unary_unary(
        f"/{SERVICE}/One", request_serializer=lambda _: b"\xff\xff", response_deserializer=bytes
    )
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(method, Ask())
    assert caught.value.details[0].code == "malformed_message"


async def test_a_method_nobody_serves_is_unimplemented(start: Callable[..., Any]) -> None:
    toy = await start()
    method = toy.peer.channel.unary_unary(
        "/harness.toy.v1.ToyService/Nothing", request_serializer=Ask.SerializeToString, response_deserializer=bytes
    )
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(method, Ask(do="echo"))
    assert caught.value.reason is Reason.UNIMPLEMENTED
    assert len(toy.exchanged) == 1  # and the exchange goes on
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).text == "echo"
    assert len(toy.exchanged) == 2


async def test_a_wrong_credential_opens_no_exchange(start: Callable[..., Any]) -> None:
    toy = await start(token=WRONG)
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="echo"))
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert not toy.exchanged


async def test_a_credential_of_its_own_makes_a_call_of_its_own(start: Callable[..., Any]) -> None:
    toy = await start()
    await toy.peer.call(toy.stub.one, Ask(do="echo"))
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="echo"), credential=WRONG.get_secret_value())
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert len(toy.exchanged) == 1


@pytest.mark.parametrize("subject", ["two\nlines", "ümlaut", " padded"])
async def test_i2_a_subject_that_is_none_is_refused(start: Callable[..., Any], subject: str) -> None:
    toy = await start()
    metadata = (*toy.peer.metadata(), ("harness-subject", subject))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await toy.stub.one(Ask(do="echo"), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_i35_the_callers_deadline_ends_the_call_on_both_sides(start: Callable[..., Any]) -> None:
    toy = await start()
    await toy.peer.call(toy.stub.one, Ask(do="echo"))
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=0.2)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.ended.wait()


async def test_i35_a_call_without_a_deadline_gets_the_servers(start: Callable[..., Any]) -> None:
    toy = await start(deadline=0.2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await toy.stub.one(Ask(do="hang"), metadata=toy.peer.metadata())
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no deadline of its own" in (caught.value.details() or "")


async def test_a_caller_that_gives_up_cancels_what_it_called(start: Callable[..., Any]) -> None:
    toy = await start()
    call = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await toy.servicer.ended.wait()
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).text == "echo"


async def test_a_peer_that_is_closed_cancels_what_it_called(start: Callable[..., Any]) -> None:
    toy = await start()
    call = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.waiting.wait()
        await toy.peer.close()
        with pytest.raises(HarnessError):
            await call
        await toy.servicer.ended.wait()


async def test_a_servicer_that_cancels_itself_is_answered_for(start: Callable[..., Any]) -> None:
    toy = await start()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="cancel_itself"), timeout=PATIENCE)
    assert caught.value.reason is Reason.UNAVAILABLE
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).text == "echo"


async def test_i35_calls_under_way_are_bounded(start: Callable[..., Any]) -> None:
    toy = await start(max_calls=1)
    first = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="wait"), timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.waiting.wait()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="echo"))
    assert caught.value.reason is Reason.CAPACITY
    toy.servicer.release.set()
    assert (await first).text == "wait"
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).text == "echo"


async def test_i35_a_large_request_goes_alone_and_a_larger_answer_is_refused(start: Callable[..., Any]) -> None:
    toy = await start()
    large = "x" * MAX_REQUEST_BYTES
    assert (await toy.peer.call(toy.stub.one, Ask(do=large))).text == large
    assert not toy.exchanged
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="large"))
    assert caught.value.reason is Reason.CAPACITY
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"))).text == "echo"
    assert len(toy.exchanged) == 2


async def test_a_process_that_offers_none_is_called_as_before(start: Callable[..., Any]) -> None:
    toy = await start(offered=False)
    answers = await asyncio.gather(*(toy.peer.call(toy.stub.one, Ask(do="echo")) for _ in range(20)))
    assert [answer.text for answer in answers] == ["echo"] * 20
    assert isinstance(toy.peer.channel, ExchangeChannel)
    assert toy.peer.channel.stream("") is None
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="harness_error"))
    assert caught.value.reason is Reason.HARNESS_SESSION_CONFLICT


async def test_streams_are_streams(start: Callable[..., Any]) -> None:
    toy = await start()
    answers = toy.peer.stream(toy.stub.many, Ask(do="echo", count=3), timeout=PATIENCE)
    assert [answer.text async for answer in answers] == ["echo"] * 3
    assert (await toy.peer.call(toy.stub.collect, iter([Ask(do="a"), Ask(do="b")]))).text == "b"
    assert not toy.exchanged


async def test_i34_an_idempotent_method_is_repeated(start: Callable[..., Any]) -> None:
    toy = await start(idempotent_methods=(f"{SERVICE}/One",))
    assert (await toy.peer.call(toy.stub.one, Ask(do="fail_twice"), timeout=PATIENCE)).text == "fail_twice"


async def test_i34_another_method_is_not_repeated(start: Callable[..., Any]) -> None:
    toy = await start()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="fail_twice"), timeout=PATIENCE)
    assert (caught.value.reason, toy.servicer.failures) == (Reason.UNAVAILABLE, 1)


async def test_each_call_is_counted_by_its_method(start: Callable[..., Any]) -> None:
    def count(code: str) -> float:
        value: float = metrics.RPC_HANDLED.labels(f"/{SERVICE}/One", code)._value.get()
        return value

    toy = await start()
    before = count("OK"), count("ABORTED")
    await toy.peer.call(toy.stub.one, Ask(do="echo"))
    with pytest.raises(HarnessError):
        await toy.peer.call(toy.stub.one, Ask(do="harness_error"))
    assert (count("OK"), count("ABORTED")) == (before[0] + 1, before[1] + 1)


async def test_i34_a_process_that_died_is_unavailable_and_found_again(
    toy_process: Callable[..., ToyProcess],
) -> None:
    process = toy_process()
    await process.start()
    peer = connect(process.address, TOKENS[0], exchange=True)
    stub = ToyStub(peer.channel)
    hanging = [asyncio.create_task(peer.call(stub.one, Ask(do="hang"), timeout=PATIENCE)) for _ in range(3)]
    await peer.call(stub.one, Ask(do="echo"))
    assert process.process is not None
    process.process.kill()
    await process.wait()
    async with asyncio.timeout(PATIENCE):
        for ended in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(ended, HarnessError)
            assert ended.reason is Reason.UNAVAILABLE
    with pytest.raises(HarnessError) as caught:
        await peer.call(stub.one, Ask(do="echo"))
    assert caught.value.reason is Reason.UNAVAILABLE
    await process.start()
    assert (await peer.call(stub.one, Ask(do="echo"), timeout=PATIENCE, wait_for_ready=True)).text == "echo"
    assert (await peer.call(stub.one, Ask(do="echo"))).text == "echo"
    await peer.close()


async def test_i33_a_stop_answers_what_was_sent_and_cuts_nothing_off(toy_process: Callable[..., ToyProcess]) -> None:
    process = toy_process()
    await process.start()
    peer = connect(process.address, TOKENS[0], exchange=True)
    stub = ToyStub(peer.channel)
    # Released by the stop: under way while the service stops.
    waiting = [asyncio.create_task(peer.call(stub.one, Ask(do="wait"), timeout=PATIENCE)) for _ in range(5)]
    await peer.call(stub.one, Ask(do="echo"))
    refused: list[grpc.aio.AioRpcError] = []

    async def call_on() -> None:
        while True:
            try:
                await stub.one(Ask(do="echo"), metadata=peer.metadata(), timeout=PATIENCE)
            except grpc.aio.AioRpcError as error:
                refused.append(error)
                return

    callers = [asyncio.create_task(call_on()) for _ in range(10)]
    assert process.process is not None
    process.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert [answer.text for answer in await asyncio.gather(*waiting)] == ["wait"] * 5
        assert await process.wait() == 0
        await asyncio.gather(*callers)
    assert [error.details() for error in refused if not cannot_have_run(error)] == []
    await peer.close()


async def test_i35_many_large_calls_at_once_fit_their_messages(start: Callable[..., Any]) -> None:
    toy = await start()
    asked = ["x" * (MAX_REQUEST_BYTES - 1000)] * 256
    answers = await asyncio.gather(*(toy.peer.call(toy.stub.one, Ask(do=each), timeout=PATIENCE) for each in asked))
    assert [answer.text for answer in answers] == asked


async def test_a_subject_that_is_refused_ends_no_other_call(start: Callable[..., Any]) -> None:
    toy = await start()
    other = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="wait"), timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.waiting.wait()
    with pytest.raises(HarnessError) as caught:
        await toy.peer.call(toy.stub.one, Ask(do="echo"), subject="s" * 257, timeout=PATIENCE)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    toy.servicer.release.set()
    assert (await other).text == "wait"


async def test_i35_nothing_is_kept_of_calls_whose_callers_gave_up(start: Callable[..., Any]) -> None:
    toy = await start()

    async def give_up_after(steps: int) -> None:
        call = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=10 * PATIENCE))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    await give_up_after(3)
    stream = toy.peer.channel.stream(f"Bearer {TOKENS[0].get_secret_value()}")
    # Before the exchange stood: it is not sent, and so not executed.
    assert (stream._calls, stream._given_up, stream._waiting) == ({}, [], {})
    await toy.peer.call(toy.stub.one, Ask(do="echo"), timeout=PATIENCE)
    assert len(toy.exchanged) == 1
    await asyncio.gather(*(give_up_after(steps) for steps in range(12) for _ in range(20)))
    late = [toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=0.001 * (each % 5)) for each in range(300)]
    assert all(isinstance(each, HarnessError) for each in await asyncio.gather(*late, return_exceptions=True))
    (exchange,) = toy.exchange._exchanges
    async with asyncio.timeout(PATIENCE):
        while exchange._tasks or exchange._answers or toy.exchange._under_way:
            await toy.peer.call(toy.stub.one, Ask(do="echo"), timeout=PATIENCE)
            await asyncio.sleep(0.01)
    assert (stream._calls, stream._given_up, stream._waiting) == ({}, [], {})


async def test_i35_both_sides_forget_a_call_that_is_given_up_as_it_arrives(start: Callable[..., Any]) -> None:
    toy = await start()
    call = api.Call(call_id=7, method=f"/{SERVICE}/One", request=Ask(do="hang").SerializeToString())
    rpc = api_grpc.ExchangeServiceStub(toy.peer.channel).Exchange(metadata=toy.peer.metadata())
    await rpc.write(api.ExchangeRequest(calls=[call], given_up=[7]))
    async with asyncio.timeout(PATIENCE):
        await until(lambda: bool(toy.exchange._exchanges))
        (exchange,) = toy.exchange._exchanges
        call.call_id, call.request = 8, Ask(do="echo").SerializeToString()
        await rpc.write(api.ExchangeRequest(calls=[call]))
        response: Any = await rpc.read()
        assert [answer.call_id for answer in response.answers] == [8]
    assert not exchange._tasks
    rpc.cancel()


async def test_i33_a_stop_does_not_wait_for_an_exchange_that_came_in_just_before(start: Callable[..., Any]) -> None:
    toy = await start()
    toy.exchange.close()
    assert (await toy.peer.call(toy.stub.one, Ask(do="echo"), timeout=PATIENCE)).text == "echo"
    await until(lambda: not toy.exchange._exchanges)


async def test_i33_a_stop_does_not_wait_for_a_call_that_its_caller_gave_up(start: Callable[..., Any]) -> None:
    toy = await start()
    call = asyncio.create_task(toy.peer.call(toy.stub.one, Ask(do="hang"), timeout=10 * PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await toy.servicer.waiting.wait()
        stream = toy.peer.channel.stream(f"Bearer {TOKENS[0].get_secret_value()}")
        toy.exchange.close()
        await until(lambda: not stream.takes_calls)
        # What follows goes over another stream, and so comes after whatever the first one has to say of its end.
        await toy.peer.call(toy.stub.one, Ask(do="echo"), timeout=PATIENCE)
        call.cancel()
        await toy.servicer.ended.wait()


async def test_i34_a_call_that_had_not_left_when_the_connection_broke_has_not_run(folder: Path) -> None:
    """The other side is a connection that speaks HTTP/2 and breaks as soon as something is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # SETTINGS, none
        said = b""
        while b"ExchangeService" not in said and (data := await reader.read(1 << 16)):
            said += data
        writer.close()

    address = f"{folder}/broken.sock"
    async with await asyncio.start_unix_server(serve, address):
        peer = connect(f"unix:{address}", TOKENS[0], exchange=True)
        stub = ToyStub(peer.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.one(Ask(do="echo"), metadata=peer.metadata(), timeout=PATIENCE)
        assert cannot_have_run(caught.value)
        await peer.close()
