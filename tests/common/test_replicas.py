"""A peer at several replicas: who is asked, when another is, and what happens while one stops (I33, I34)."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason
from services.common.exchange import ExchangeServicer
from services.common.interceptors import ServiceAuthenticator, ServiceInterceptor
from services.common.replicas import SpreadChannel, cannot_have_run
from services.common.server import server_options
from services.common.status import from_rpc_error
from tests.common.conftest import TOKENS, ToyProcess
from tests.common.toy import SERVICE, Answer, Ask, ToyServicer, ToyStub, add_toy_servicer_to_server

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
BOUND_SECONDS = 90


class NamedToy(ToyServicer):
    """A toy that says which it is, and counts what it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.asked: Counter[str] = Counter()
        self.refuse_begin = False
        self.fail: Callable[[Any], Awaitable[None]] | None = None

    async def _act(self, request: Any, context: Any, *, second: bool = False) -> Any:
        self.asked[request.do] += 1
        if self.refuse_begin:
            raise HarnessError(Reason.UNAVAILABLE, "Stopping.", not_begun=True)
        if self.fail is not None:
            await self.fail(context)
        await super()._act(request, context, second=second)
        return Answer(text=self.name)


@dataclass
class Replica:
    address: str
    servicer: NamedToy
    health: Any
    server: grpc.aio.Server

    async def say(self, status: int) -> None:
        await self.health.set("", status)


Start = Callable[..., Awaitable[Replica]]


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    servers: list[grpc.aio.Server] = []

    async def start_one(name: str, place: str = "") -> Replica:
        server = grpc.aio.server(
            interceptors=[ServiceInterceptor(ServiceAuthenticator(TOKENS), default_deadline_seconds=30)],
            options=server_options(),
        )
        address = f"unix:{folder}/{name}.sock"
        servicer: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - set at run time
        replica = Replica(address, NamedToy(name), servicer, server)
        add_toy_servicer_to_server(replica.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(replica.health, server)
        registrations = [(add_toy_servicer_to_server, replica.servicer)]
        exchange = ExchangeServicer(
            registrations, default_deadline_seconds=30, max_calls=100, called=lambda: None, place=place
        )
        exchange.add_to(server)
        await replica.say(SERVING)
        server.add_insecure_port(address)
        await server.start()
        servers.append(server)
        return replica

    yield start_one
    for server in servers:
        await server.stop(0)


async def until_serving(peer: Peer, *addresses: str) -> None:
    """Waits until the peer knows that exactly these serve."""
    channel = peer.channel
    assert isinstance(channel, SpreadChannel)
    async with asyncio.timeout(BOUND_SECONDS):
        while set(channel.replicas.serving()) != set(addresses):
            await channel.replicas.changed()


async def ask(peer: Peer, stub: ToyStub, do: str = "echo", **options: Any) -> str:
    timeout: float = options.pop("timeout", BOUND_SECONDS)
    return (await peer.call(stub.one, Ask(do=do), timeout=timeout, **options)).text


async def test_calls_are_spread_and_go_where_is_least_to_do(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0])
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)
    assert Counter([await ask(peer, stub) for _ in range(20)]) == {"one": 10, "two": 10}

    # One that hangs on its calls gets no more of them.
    hanging = asyncio.create_task(ask(peer, stub, "wait"))
    waits = [asyncio.create_task(r.servicer.waiting.wait()) for r in (one, two)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    busy, idle = (one, two) if one.servicer.waiting.is_set() else (two, one)
    assert {await ask(peer, stub) for _ in range(10)} == {idle.servicer.name}
    busy.servicer.release.set()
    await hanging
    for wait in waits:
        wait.cancel()
    await peer.close()


async def test_a_stream_goes_to_the_place_it_is_near_while_that_serves_and_else_anywhere(start: Start) -> None:
    one, two = await start("one", place="p001"), await start("two", place="p002")
    peer = connect(f"{one.address},{two.address}", TOKENS[0], exchange=True)
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)
    assert {await ask(peer, stub) for _ in range(4)} == {"one", "two"}  # they say their places with the first call

    async def streamed(near: str | None) -> str:
        answers = peer.stream(stub.many, Ask(do="echo", count=1), timeout=BOUND_SECONDS, near=near)
        async with aclosing(answers):
            [text] = [answer.text async for answer in answers]
            return text

    assert {await streamed("p001") for _ in range(6)} == {"one"}
    assert {await streamed("p002") for _ in range(6)} == {"two"}
    for near in (None, "p003"):
        assert {await streamed(near) for _ in range(6)} == {"one", "two"}
    await one.say(NOT_SERVING)
    await until_serving(peer, two.address)
    assert {await streamed("p001") for _ in range(6)} == {"two"}  # I33
    await peer.close()


async def test_i33_a_replica_that_says_that_it_does_not_serve_gets_no_call(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0])
    stub = ToyStub(peer.channel)
    await one.say(NOT_SERVING)
    await until_serving(peer, two.address)
    assert {await ask(peer, stub) for _ in range(10)} == {"two"}
    # None serves: one is asked all the same, for it can say why it does not.
    await two.say(NOT_SERVING)
    await until_serving(peer)
    assert await ask(peer, stub) in ("one", "two")
    waiting = asyncio.create_task(ask(peer, stub, wait_for_ready=True))
    await one.say(SERVING)
    assert await waiting == "one"
    await peer.close()


async def test_streams_are_spread_apart_from_calls(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0])
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)
    streams = [peer.stream(stub.many, Ask(do="hang_second", count=2), timeout=None) for _ in range(4)]
    assert Counter([(await anext(stream)).text for stream in streams]) == {"one": 2, "two": 2}
    for stream in streams:
        await stream.aclose()
    async with aclosing(peer.stream(stub.many, Ask(do="echo", count=3), timeout=BOUND_SECONDS)) as answers:
        assert len({answer.text async for answer in answers}) == 1, "a stream stays where it began"
    await peer.close()


async def test_another_is_asked_where_the_first_refused_before_it_began(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0])
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)
    one.servicer.refuse_begin = True
    assert [await ask(peer, stub) for _ in range(4)] == ["two"] * 4
    two.servicer.refuse_begin = True
    with pytest.raises(HarnessError) as caught:
        await ask(peer, stub)
    assert caught.value.reason is Reason.UNAVAILABLE
    # Said of that call alone: whoever passes the error on must not say it too.
    assert not caught.value.not_begun
    assert "not_begun" not in caught.value.metadata
    await peer.close()


async def test_i11_a_call_that_may_have_run_is_made_again_only_where_that_is_the_same(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0])
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)

    def asked() -> int:
        return one.servicer.asked["raise:unavailable"] + two.servicer.asked["raise:unavailable"]

    with pytest.raises(HarnessError):
        await ask(peer, stub, "raise:unavailable")
    assert asked() == 1
    with pytest.raises(HarnessError):
        await ask(peer, stub, "raise:unavailable", idempotent=True)
    assert asked() == 1 + 4, "bounded"
    # What is sent piece by piece cannot be sent again.
    with pytest.raises(HarnessError) as caught:
        await peer.call(stub.collect, iter([Ask(do="raise:unavailable")]), idempotent=True, timeout=BOUND_SECONDS)
    assert caught.value.reason is Reason.UNAVAILABLE
    assert asked() == 6
    await peer.close()

    named = connect(f"{one.address},{two.address}", TOKENS[0], idempotent_methods=[f"{SERVICE}/One"])
    await until_serving(named, one.address, two.address)
    with pytest.raises(HarnessError):
        await ask(named, ToyStub(named.channel), "raise:unavailable")
    assert asked() == 10
    await named.close()


async def test_i34_a_store_that_is_away_is_what_the_caller_hears_though_time_ran_out(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0], idempotent=True)
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)
    reasons = iter((Reason.STORE_UNAVAILABLE, Reason.DEADLINE_EXCEEDED))

    async def in_turn(_: Any) -> None:
        raise HarnessError(next(reasons), "Not now.")

    one.servicer.fail = two.servicer.fail = in_turn
    with pytest.raises(HarnessError) as caught:
        await ask(peer, stub)
    assert (caught.value.reason, caught.value.retryable) == (Reason.STORE_UNAVAILABLE, True)
    assert next(reasons, None) is None, "another replica was asked, and it was that which had no time"
    await peer.close()


async def test_i34_a_store_that_takes_most_of_the_time_to_be_away_is_not_waited_for_again(start: Start) -> None:
    one, two = await start("one"), await start("two")
    peer = connect(f"{one.address},{two.address}", TOKENS[0], idempotent=True)
    stub = ToyStub(peer.channel)
    await until_serving(peer, one.address, two.address)

    async def slowly(context: Any) -> None:
        await asyncio.sleep(0.6 * context.time_remaining())  # what a store's own timeout takes of its caller's
        raise HarnessError(Reason.STORE_UNAVAILABLE, "The store cannot answer now.")

    one.servicer.fail = two.servicer.fail = slowly
    with pytest.raises(HarnessError):
        await ask(peer, stub, timeout=2)
    assert one.servicer.asked["echo"] + two.servicer.asked["echo"] == 1
    await peer.close()


async def test_a_call_that_found_no_connection_was_never_sent(folder: Path) -> None:
    """What grpc says of it is what the peer rests on: another text of a newer grpc has to be noticed."""
    peer = connect(f"unix:{folder}/nobody.sock", TOKENS[0])
    call = ToyStub(peer.channel).one(Ask(do="echo"), metadata=peer.metadata(), timeout=BOUND_SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert cannot_have_run(caught.value)
    assert from_rpc_error(caught.value).reason is Reason.UNAVAILABLE
    await peer.close()


async def test_none_there_is_said_soon_and_waited_for_a_moment(folder: Path, start: Start) -> None:
    peer = connect(f"unix:{folder}/one.sock,unix:{folder}/two.sock", TOKENS[0])
    stub = ToyStub(peer.channel)
    with pytest.raises(HarnessError) as caught:
        await ask(peer, stub)
    assert (caught.value.reason, caught.value.retryable) == (Reason.UNAVAILABLE, True)
    with pytest.raises(HarnessError):
        await anext(peer.stream(stub.many, Ask(do="echo", count=1), timeout=BOUND_SECONDS))
    waiting = asyncio.create_task(ask(peer, stub, wait_for_ready=True))
    await start("two")
    assert await waiting == "two"
    await peer.close()


def two_toys(make: Callable[..., ToyProcess], folder: Path) -> tuple[ToyProcess, ToyProcess]:
    return tuple(  # type: ignore[return-value] - two of two
        make(HARNESS_LISTEN=f"unix:{folder}/{name}.sock", HARNESS_DATA_DIR=str(folder / name)) for name in "ab"
    )


async def test_i34_a_killed_replica_costs_no_idempotent_call_and_is_found_again(
    toy_process: Callable[..., ToyProcess], folder: Path
) -> None:
    first, second = two_toys(toy_process, folder)
    addresses = [toy.environment["HARNESS_LISTEN"] for toy in (first, second)]
    await first.start()
    await second.start()
    peer = connect(",".join(addresses), TOKENS[0], idempotent=True)
    stub = ToyStub(peer.channel)
    calls = asyncio.create_task(_keep_asking(peer, stub, stop := asyncio.Event()))
    os.kill(first.pid, signal.SIGKILL)
    await first.wait()
    await first.start()
    await until_serving(peer, *addresses)
    stop.set()
    assert await calls > 0
    await peer.close()


async def test_i34_a_replica_that_stands_still_is_given_up_before_the_calls_that_wait_for_it(
    toy_process: Callable[..., ToyProcess], folder: Path
) -> None:
    toys = two_toys(toy_process, folder)
    for toy in toys:
        await toy.start()
    addresses = [toy.environment["HARNESS_LISTEN"] for toy in toys]
    peer = connect(",".join(addresses), TOKENS[0], idempotent=True)
    stub = ToyStub(peer.channel)
    await until_serving(peer, *addresses)
    os.kill(toys[0].pid, signal.SIGSTOP)
    try:
        # Some of them reach it; none of them has the time that a channel to a single process takes to notice.
        asked = [peer.call(stub.one, Ask(do="echo"), timeout=20) for _ in range(4)]
        assert [answer.text for answer in await asyncio.gather(*asked)] == ["echo"] * 4
        await until_serving(peer, addresses[1])
    finally:
        os.kill(toys[0].pid, signal.SIGCONT)
    await until_serving(peer, *addresses)
    await peer.close()


@pytest.mark.parametrize("exchange", [False, True], ids=["alone", "exchange"])
async def test_i35_a_replica_that_stands_still_is_given_up_though_it_takes_nothing_more(
    toy_process: Callable[..., ToyProcess], folder: Path, exchange: bool
) -> None:
    """What its socket does not hold stays in a write, behind which no ping leaves, and for which grpc keeps no deadline."""
    toys = two_toys(toy_process, folder)
    for toy in toys:
        await toy.start()
    addresses = [toy.environment["HARNESS_LISTEN"] for toy in toys]
    peer = connect(",".join(addresses), TOKENS[0], idempotent=True, exchange=exchange)
    stub = ToyStub(peer.channel)
    await until_serving(peer, *addresses)
    for _ in toys:
        await peer.call(stub.one, Ask(do="echo"), timeout=BOUND_SECONDS)
    os.kill(toys[0].pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            large = Ask(do="x" * 60_000)
            await asyncio.gather(*(peer.call(stub.one, large, timeout=1000) for _ in range(100)))  # half of them there
            await until_serving(peer, addresses[1])
    finally:
        os.kill(toys[0].pid, signal.SIGCONT)
    await until_serving(peer, *addresses)
    await peer.close()


async def test_i35_a_call_ends_soon_after_its_deadline_where_grpc_does_not_end_it(start: Start) -> None:
    """As it does not once it has closed a connection in the middle of a write, which takes a process half a minute of standing still to be seen."""
    replica = await start("only")
    peer = connect(replica.address, TOKENS[0])

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(BOUND_SECONDS):
        with pytest.raises(HarnessError) as caught:
            await peer.call(never, Ask(do="echo"), timeout=0.1)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    await peer.close()


async def test_i33_replicas_are_restarted_one_by_one_without_the_loss_of_a_call(
    toy_process: Callable[..., ToyProcess], folder: Path
) -> None:
    """None of these calls may be repeated: each has to find a replica that executes it."""
    toys = two_toys(toy_process, folder)
    for toy in toys:
        await toy.start()
    addresses = [toy.environment["HARNESS_LISTEN"] for toy in toys]
    peer = connect(",".join(addresses), TOKENS[0])
    stub = ToyStub(peer.channel)
    stop = asyncio.Event()
    calls = [asyncio.create_task(_keep_asking(peer, stub, stop)) for _ in range(5)]
    for toy in toys:
        os.kill(toy.pid, signal.SIGTERM)
        assert await toy.wait() == 0, toy.log_text()
        await toy.start()
        await until_serving(peer, *addresses)
    stop.set()
    assert all(count > 0 for count in await asyncio.gather(*calls))
    await peer.close()


async def _keep_asking(peer: Peer, stub: ToyStub, stop: asyncio.Event) -> int:
    """How many calls were answered; the first that is not raises."""
    count = 0
    while not stop.is_set():
        await peer.call(stub.one, Ask(do="echo"), timeout=BOUND_SECONDS)
        count += 1
    return count


@pytest.mark.parametrize(
    "addresses", ["unix:/a,unix:/a", "unix:/a,,unix:/b", "unix:/a,b", ",".join(f"h:{n}" for n in range(65))]
)
async def test_i32_a_wrong_list_of_addresses_is_refused(addresses: str) -> None:
    with pytest.raises(ValueError, match=r"unix|replica"):
        connect(addresses)
