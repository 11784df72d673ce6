"""Fences of runs over real gRPC: turns, generations, incarnations, and requests that break the contract (I6, I10, I11, I27)."""

import grpc
import pytest
from google.protobuf import timestamp_pb2

from adapters.sdk import events
from adapters.sdk.host import runtime
from adapters.sdk.host.refusal import Refusal
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.testing import kinds, text_of
from adapters.sdk.tools import Tools
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.scripted import FAST, forever, gate, steered, three, until
from tests.adapters.status import details, drained, refused


async def test_i6_a_lower_turn_is_refused_and_a_higher_one_ends_the_older():
    adapter, context = steered(forever)
    async with context as client:
        await client.create()
        old = client.fence(2, "r2")
        call = client.start(old, client.input("x"))
        await call.read()
        await refused(
            drained(client.start(client.fence(1, "r1"), client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE"
        )
        await refused(
            drained(client.start(client.fence(2, "other"), client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE"
        )
        young = client.start(client.fence(3, "r3"), client.input("x"))
        await young.read()
        assert adapter.ended == ["r2"]
        drafts = (await call.read()).batch.drafts
        assert drafts[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
        # The older run can still be read to its end.
        assert kinds(await client.follow(client.attach(old, 0))) == ["content.delta", "run.cancelled"]
        await client.cancel(client.fence(3, "r3"))


async def test_i10_an_older_executor_is_refused_everywhere():
    _, context = steered(forever)
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1", 2), client.input("x"))
        await call.read()
        await client.attach(client.fence(1, "r1", 3), 1).read()
        old = client.fence(1, "r1", 2)
        for refusal in (
            drained(client.start(old, client.input("x"))),
            drained(client.attach(old)),
            client.ack(old, 1),
            client.cancel(old),
        ):
            await refused(refusal, "FAILED_PRECONDITION", "STALE_LEASE")
        await client.ack(client.fence(1, "r1", 3), 1)
        await client.cancel(client.fence(1, "r1", 3))


async def test_i11_what_was_issued_to_another_incarnation_is_not_started():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        other = "another-incarnation"
        await refused(
            drained(client.start(fence, client.input("x"), other)), "FAILED_PRECONDITION", "incarnation_mismatch"
        )
        await refused(drained(client.attach(fence, 0, other)), "FAILED_PRECONDITION", "incarnation_mismatch")
        await refused(drained(client.attach(fence)), "NOT_FOUND", "run_unknown")
        await refused(client.ack(fence, 0), "NOT_FOUND", "run_unknown")
        assert not adapter.turns


async def test_i27_a_higher_runtime_generation_ends_the_older_runtime_and_a_lower_one_never_comes_back():
    adapter, context = steered(forever)
    async with context as client:
        assert await client.create()
        assert not await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        client.runtime_generation = 2
        assert await client.create()
        await until(lambda: adapter.runtimes[0].cleaned == 1)
        assert adapter.ended == ["r1"]
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        old = client.fence(2, "r2", runtime_generation=1)
        await refused(drained(client.start(old, client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE")
        await refused(client.runtime.Initialize(pb2.InitializeRequest(fence=old)), "FAILED_PRECONDITION", "STALE_LEASE")
        client.runtime_generation = 1
        await refused(client.create(), "FAILED_PRECONDITION", "STALE_LEASE")
        client.runtime_generation, client.epoch = 1, 2
        assert await client.create()
        unknown = client.fence(1, "r1", runtime_generation=5)
        await refused(drained(client.start(unknown, client.input("x"))), "NOT_FOUND", "runtime_unknown")


async def test_i6_two_bindings_work_at_once_and_one_binding_works_on_one():
    _, context = steered(forever)
    async with context as client:
        clients = [client, client.another(), client.another()]
        calls = []
        for each in clients:
            await each.create()
            calls.append(each.start(each.fence(1, f"run-{each.binding_id}"), each.input("x")))
        for call in calls:
            assert text_of((await call.read()).batch.drafts) == "begun"
        health = await client.adapter.CheckHealth(adapter_pb2.CheckHealthRequest())
        assert health.report.capacity.active == 3
        for each in clients:
            await each.cancel(each.fence(1, f"run-{each.binding_id}"))


@pytest.mark.parametrize("moment", [{"seconds": 1 << 60}, {"seconds": -(1 << 40)}, {"seconds": 1, "nanos": -5}])
async def test_a_start_that_is_refused_leaves_nothing_behind(moment):
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        fence, turn = client.fence(1, "r1"), client.input("x")
        turn.deadline.CopyFrom(timestamp_pb2.Timestamp(**moment))
        for _ in range(2):
            await refused(drained(client.start(fence, turn)), "INVALID_ARGUMENT", "invalid_request")
        await refused(client.ack(fence, 0), "NOT_FOUND", "run_unknown")
        # The turn was not used up, nor the runtime's place for a run.
        assert kinds(await client.follow(client.start(fence, client.input("y"))))[-1] == "run.completed"
        assert [each.message for each in adapter.turns] == ["y"]


async def test_i6_a_start_that_fails_ends_no_older_run_and_takes_no_place(monkeypatch):
    turns = 0

    def tools(*access):
        """Fails while the input of the second turn is put together."""
        nonlocal turns
        turns += 1
        if turns == 2:
            raise OSError("nowhere")
        return Tools(*access)

    monkeypatch.setattr(runtime, "Tools", tools)
    queue, play = gate()
    adapter, context = steered(play)
    async with context as client:
        registry = RuntimeRegistry(adapter, "this-process", FAST)
        await registry.create(client.fence(), client.context(), 60.0)
        run = registry.start(client.fence(1, "r1"), "this-process", client.input("x"))
        second = client.fence(2, "r2")
        with pytest.raises(OSError, match="nowhere"):
            registry.start(second, "this-process", client.input("y"))
        assert registry.active_runs == 1
        with pytest.raises(Refusal, match="knows nothing"):
            registry.known(second)
        queue.put_nowait(events.completed())
        queue.put_nowait(None)
        assert [kinds(drafts) async for _, drafts in run.follow(0)] == [["run.completed"]]
        assert registry.start(second, "this-process", client.input("y")).turn == 2
        await registry.close()


async def test_requests_are_checked_against_the_contract():
    _, context = steered(three)
    async with context as client:
        await client.create()
        canary = "canary value"
        info = await refused(client.cancel(client.fence(1, canary)), "INVALID_ARGUMENT", "invalid_request")
        assert canary not in str(info)
        await refused(
            drained(client.start(client.fence(0, "r1"), client.input("x"))), "INVALID_ARGUMENT", "invalid_request"
        )
        await refused(
            drained(client.start(client.fence(1, ""), client.input("x"))), "INVALID_ARGUMENT", "invalid_request"
        )
        for method, kind in (("AckRun", "unary_unary"), ("StartRun", "unary_stream")):
            call = getattr(client.channel, kind)(f"/harness.runtime.v1.RuntimeService/{method}")(b"\xff\xff")
            await refused(call if kind == "unary_unary" else drained(call), "INVALID_ARGUMENT", "invalid_request")
        await refused(client.cancel(client.fence(1, "r", protocol_version=2)), "FAILED_PRECONDITION", "WORKER_MISMATCH")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.runtime.AckRun(pb2.AckRunRequest())
        _, _, status = details(caught.value)
        assert len(status.details) == 2
