"""The second Python stack, as a real process: its generated code, its process, its lifecycle over gRPC, and the certification kit."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapters.betterproto import generate
from adapters.sdk.testing import connected, kinds, text_of
from conformance.certification import Options, certify
from conformance.results import CERTIFIED, FAILED
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.malformed import taken
from tests.adapters.patience import check_patience
from tests.adapters.processes import AdapterProcess
from tests.adapters.status import details, drained, refused

MODULE = "adapters.betterproto"
FORM = {"interrupt": {"form": [{"name": "city", "type": "string", "required": True}]}}


@pytest.fixture(scope="module", autouse=True)
def generated() -> None:
    """The package that the process imports, built where `make gen` has not."""
    assert generate.main() == 0


@pytest.fixture(scope="module")
def process(generated) -> Iterator[AdapterProcess]:
    """One for all tests that leave it running; each has a binding of its own."""
    with tempfile.TemporaryDirectory(prefix="ha-") as folder:
        # From this thread: the kernel takes the thread that started a process for its parent.
        started = AdapterProcess(Path(folder), module=MODULE)._start()
        yield started
        assert asyncio.run(started.stop()) == 0


def client_of(process: AdapterProcess, **settings: Any):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    return connected(process.address, harness_id="reference_betterproto", **settings)


def script(*steps: dict[str, Any]) -> str:
    return json.dumps({"script": list(steps)})


async def test_it_is_certified_with_a_replica(process, folder):
    replica = await AdapterProcess(folder, module=MODULE).start()
    try:
        missed: list[str] = []
        options = Options(process.address, replica=replica.address)
        made = await certify(
            options, lambda case: missed.append(f"{case.case.id}: {case.reason}") if case.result == FAILED else None
        )
        assert not missed
        assert made.verdict == CERTIFIED
        claimed = [found for found in made.document["capabilities"].values() if found["claimed"] == "native"]
        assert len(claimed) >= 20
    finally:
        await replica.stop()


async def test_the_process_announces_itself_and_its_health_and_ends_in_order(folder):
    environment = {"HARNESS_SHUTDOWN_GRACE_SECONDS": "0"}
    process = await AdapterProcess(folder, module=MODULE, environment=environment).start()
    assert process.socket_mode == 0o600
    async with client_of(process) as client:
        answer = await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert answer.incarnation == process.ready["incarnation"]
        assert answer.descriptor.harness_id == "reference_betterproto"
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "harness.runtime.v1.RuntimeService", "harness.adapter.v1.AdapterService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        # A run that works is cancelled by a stop, and its stream gets the end.
        stopping = asyncio.create_task(process.stop())
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        assert await stopping == 0
    assert process.socket_mode is None


def test_a_wrong_setting_is_said_before_anything_is_served():
    for arguments in ([], ["--listen", "nowhere"], ["--listen", "127.0.0.1:0"]):
        ended = subprocess.run(
            [sys.executable, "-m", MODULE, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, "--listen" in ended.stderr) == (2, True), ended.stderr


async def test_a_port_is_served_to_who_has_the_token(folder):
    environment = {"HARNESS_ADAPTER_TOKEN": "right"}
    process = await AdapterProcess(folder, module=MODULE, listen="127.0.0.1:0", environment=environment).start()
    try:
        for token, allowed in (("right", True), ("wrong", False), ("", False)):
            async with connected(process.ready["address"], token=token) as client:
                asked = client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest(), metadata=client.metadata)
                if allowed:
                    await asked
                else:
                    await refused(asked, "UNAUTHENTICATED", "unauthenticated")
    finally:
        assert await process.stop() == 0


async def test_fences_hold(process):
    async with client_of(process) as client:
        fence = client.fence(2, "r2", 2)
        await refused(
            drained(client.start(fence, client.input("x"), "other")), "FAILED_PRECONDITION", "incarnation_mismatch"
        )
        await refused(
            client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence())), "NOT_FOUND", "runtime_unknown"
        )
        assert await client.create()
        assert not await client.create()
        await refused(drained(client.attach(fence)), "NOT_FOUND", "run_unknown")
        call = client.start(fence, client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        stale = "FAILED_PRECONDITION", "STALE_LEASE"
        await refused(drained(client.start(client.fence(1, "r1"), client.input("x"))), *stale)
        await refused(drained(client.start(client.fence(2, "other"), client.input("x"))), *stale)
        await refused(drained(client.attach(client.fence(2, "r2", 1))), *stale)
        await refused(
            client.runtime.Restart(pb2.RestartRequest(fence=client.fence())), "ABORTED", "operation_in_progress"
        )
        younger = client.attach(client.fence(2, "r2", 3), 1)
        await younger.read()
        await refused(call.read(), "ABORTED", "stream_superseded")
        # A younger turn ends what the older one does.
        await client.follow(client.start(client.fence(3, "r3"), client.input('{"n": 2}')))
        assert (await younger.read()).batch.drafts[
            0
        ].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
        await client.cleanup()
        await refused(client.runtime.Restart(pb2.RestartRequest(fence=client.fence())), "NOT_FOUND", "runtime_gone")
        client.runtime_generation = 2
        assert await client.create()
        await refused(drained(client.start(client.fence(4, "r4", runtime_generation=1), client.input("x"))), *stale)


async def test_a_malformed_request_names_the_field_and_not_its_value(process):
    async with client_of(process) as client:
        await client.create()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(client.start(client.fence(1, "no spaces"), client.input("x")))
        name, info, status = details(caught.value)
        assert (name, info.reason) == ("INVALID_ARGUMENT", "invalid_request")
        assert "fence.run_id" in status.message
        assert "no spaces" not in str(status)
        garbage: Any = client.channel.unary_unary("/harness.runtime.v1.RuntimeService/Initialize")
        await refused(garbage(b"\x0a\xff\xff"), "INVALID_ARGUMENT", "invalid_request")


async def test_drafts_wait_until_they_are_durable_and_none_is_lost(process):
    async with client_of(process, limits=runtime_pb2.RuntimeLimits(max_unacked_events=4)) as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input('{"n": 10}'))
        drafts: list[Any] = []
        while len(drafts) < 4:
            drafts += (await call.read()).batch.drafts
        assert len(drafts) == 4
        await client.ack(fence, 2)
        await refused(drained(client.attach(fence, 1)), "OUT_OF_RANGE", "offset_forgotten")
        await refused(client.ack(fence, 99), "OUT_OF_RANGE", "offset_ahead")
        rest = await client.follow(client.attach(fence, 4), fence)
        assert kinds([*drafts, *rest]) == ["content.delta"] * 10 + ["run.completed"]


async def test_a_cancel_is_remembered_for_a_run_that_never_came(process):
    async with client_of(process) as client:
        await client.create()
        assert not (await client.cancel(client.fence(1, "r1"))).already_ended
        await refused(
            drained(client.start(client.fence(1, "r1"), client.input("x"))), "FAILED_PRECONDITION", "run_cancelled"
        )


async def test_a_pause_is_gone_on_with_once(process):
    async with client_of(process) as client:
        await client.create()
        first = client.fence(1, "r1")
        drafts = await client.follow(client.start(first, client.input(script(FORM))), first)
        assert kinds(drafts) == ["interrupt.requested", "run.interrupted"]
        decision = runtime_pb2.ResumeDecision(interrupt_id="interrupt-1", revision=1, interrupted_run_id="r1")
        decision.form_values.update({"city": "Rome"})
        second = client.fence(2, "r2")
        assert kinds(await client.follow(client.resume(second, client.input(""), decision), second)) == [
            "run.completed"
        ]
        assert await client.pending_interrupt() is None
        (failed,) = await client.follow(client.resume(client.fence(3, "r3"), client.input(""), decision))
        assert failed.payload.run_failed.code == "interrupt_lost"


async def test_faults_are_the_operators_to_allow(process):
    async with client_of(process) as client:
        (failed,) = await client.turn(script({"raise": "a secret"}))
        assert failed.payload.run_failed.code == "faults_not_allowed"
        allowed = client.another(profile_settings={"allow_faults": True}, persistence=client.persistence)
        (failed,) = await allowed.turn(script({"raise": "a secret"}))
        assert failed.payload.run_failed.code == "adapter_defect"
        assert "a secret" not in str(failed)
        assert text_of(await allowed.turn("hello")).endswith("Now you say: hello")
    assert "a secret" not in process.log.read_text()


async def test_i34_a_call_that_its_facade_refuses_for_good_is_not_made_again(process):
    await check_patience(partial(client_of, process))


def test_the_facades_are_waited_for_as_long_as_their_contracts_say():
    from adapters.betterproto import facades  # whose imports were generated by now

    assert facades.AWAY_SECONDS == {"state": 10.0, "tool": 30.0}


async def test_no_constraint_of_the_contracts_can_be_broken(process):
    async with client_of(process) as client:
        await client.create()
        found, count = await taken(client)
        assert not found
        assert count > 250
        await client.turn("hello")


@pytest.mark.parametrize(("kept_seconds", "kept"), [(3_600.0, 1), (-1.0, 0)])
async def test_drafts_of_an_ended_run_outlast_a_short_grace(monkeypatch, kept_seconds, kept):
    """An executor that comes a moment after the grace still gets the end of its run; one that never comes does not keep it for ever."""
    from betterproto_contracts.harness.event.v1 import CancelReason, EventDraft
    from betterproto_contracts.harness.runtime.v1 import RuntimeLimits

    from adapters.betterproto import runs  # whose imports were generated by now

    monkeypatch.setattr(runs, "KEEP_SECONDS", kept_seconds)

    async def before() -> None:
        return

    async def hang(_):
        await asyncio.Event().wait()
        yield EventDraft()

    run = runs.Run("r1", 1, 1, RuntimeLimits(detach_grace_seconds=3_600))
    run.start(before, hang, 3_600.0)
    await run.stop(CancelReason.SHUTDOWN)
    run._on_timer(CancelReason.SHUTDOWN)  # the grace is over, which began before the run ended
    assert run.last - run.acked == kept
    run._cancel_timer("detached")
