"""Providers that hang, are down, or die: what one does costs no other one's tools, and what never began is not told as if it might have (I11, I35)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY

from harness.catalog.v1 import resolution_service_pb2
from harness.event.v1 import payload_pb2
from harness.tool.v1 import tool_provider_service_pb2
from services.common.errors import HarnessError, Reason
from services.runs.clients.catalog import PROFILE_SECONDS
from services.runs.run import Run
from services.runs.tools.flight import Flights
from services.runs.tools.invoking import Invoker, pool_of
from services.runs.tools.providers.builtin import BUILTIN
from services.runs.tools.record import State
from tests.runs.tools.stand import PATIENCE, Answer, Provider, ProviderStatus, Stand, echo
from tests.runs.tools.test_approvals import resumed, waiting
from tests.runs.tools.wire import Wire, mute_server

ERROR = payload_pb2.TOOL_OUTCOME_ERROR
SUCCESS = payload_pb2.TOOL_OUTCOME_SUCCESS
Asked = tool_provider_service_pb2.InvokeProviderToolRequest


class Hanging:
    """A provider's behaviour: it answers nobody before it is let go."""

    def __init__(self, provider: Provider) -> None:
        self.go_on = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._count = 0
        provider.behaviour = self

    async def __call__(self, asked: Asked) -> Answer:
        async with self._arrived:
            self._count += 1
            self._arrived.notify_all()
        await self.go_on.wait()
        return await echo(asked)

    async def has(self, count: int) -> None:
        """Returns once so many calls hang in it."""
        async with asyncio.timeout(PATIENCE), self._arrived:
            await self._arrived.wait_for(lambda: self._count >= count)


def refused_for_room(tool: str) -> float:
    return REGISTRY.get_sample_value("harness_tool_provider_full_total", {"tool": tool}) or 0.0


async def test_i35_a_provider_that_hangs_leaves_room_for_the_calls_of_others(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    _, address = await stand.another_provider("other")
    stand.grant(run, "other", provider=address)
    stand.grant(run, "clock", provider=BUILTIN, schema={"type": "object", "additionalProperties": False})
    await stand.replica(per_provider=2)
    hanging, before = Hanging(stand.provider), refused_for_room("echo")
    held = [asyncio.create_task(stand.invoke(run, f"held-{number}", replica=1)) for number in range(2)]
    await hanging.has(2)
    accepted = (await stand.again(run)).tool_calls
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, "more", replica=1)
    assert (refused.value.reason, refused.value.retryable) == (Reason.CAPACITY, True)
    assert refused.value.retry_after is not None
    # Nothing began, and nothing was used up.
    assert await stand.record("more") is None
    assert (await stand.again(run)).tool_calls == accepted
    assert len(stand.provider.calls) == 2
    assert refused_for_room("echo") == before + 1
    # Others' tools are as ever, here; and this one's are at a replica that has room.
    for number in range(3):
        other = await stand.invoke(run, f"other-{number}", tool_id="other", replica=1)
        assert other.completed.outcome == SUCCESS
    told = await stand.invoke(run, "clock-1", {}, tool_id="clock", replica=1)
    assert told.completed.outcome == SUCCESS
    elsewhere = asyncio.create_task(stand.invoke(run, "elsewhere"))
    await hanging.has(3)
    hanging.go_on.set()
    assert [one.completed.outcome for one in await asyncio.gather(elsewhere, *held)] == [SUCCESS] * 3
    assert (await stand.invoke(run, "more", replica=1)).completed.outcome == SUCCESS


async def test_i35_a_full_provider_takes_nothing_from_a_call_that_is_known(stand: Stand) -> None:
    """One that was approved keeps its approval, one that ended is told, and one that has to wait for a person needs no room."""
    interrupted = await waiting(stand)
    run = await resumed(stand, interrupted, approve=True)
    stand.grant(run, "free")
    stand.clock.pass_by(PROFILE_SECONDS)  # for the grants to be asked for again
    await stand.replica(per_provider=1)
    ended = await stand.invoke(run, "ended", tool_id="free", replica=1)
    hanging = Hanging(stand.provider)
    held = asyncio.create_task(stand.invoke(run, "held", tool_id="free", replica=1))
    await hanging.has(1)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, replica=1)
    assert (refused.value.reason, refused.value.retryable) == (Reason.CAPACITY, True)
    assert (await stand.stored()).state is State.WAITING
    assert await stand.invoke(run, "ended", tool_id="free", replica=1) == ended
    later = await stand.run(agent=run.agent_id or "")
    assert await stand.invoke(later, "ended", tool_id="free", replica=1) == ended
    assert (await stand.invoke(run, "asks", replica=1)).HasField("approval_required")
    hanging.go_on.set()
    await held
    assert (await stand.invoke(run, replica=1)).completed.outcome == SUCCESS


async def test_a_refusal_for_want_of_room_says_that_nothing_began(stand: Stand) -> None:
    flights = Flights(
        stand.calls, Invoker(stand.clock), stand.replicas[0].tasks, stand.clock, holder="h", ttl=1.0, per_provider=0
    )
    grant = stand.grant(await stand.run())
    with pytest.raises(HarnessError) as refused:
        flights.check_room(grant)
    assert refused.value.not_begun


def test_tools_of_one_provider_share_its_bound_and_built_in_ones_do_not() -> None:
    def pool(tool_id: str, provider: str) -> str:
        grant = resolution_service_pb2.ToolGrant(provider=provider)
        grant.descriptor.tool_id = tool_id
        return pool_of(grant)

    assert pool("a", "unix:/one") == pool("b", "unix:/one") != pool("a", "unix:/two")
    assert pool("clock", BUILTIN) != pool("http_get", BUILTIN)


# --- providers that are not there ---


def told(answered: Any) -> tuple[str, bool, bool, bool]:
    """Code, whether it may be repeated, whether it says that it did not begin, whether it says that something may have happened."""
    assert answered.completed.outcome == ERROR
    error = answered.completed.error
    return error.code, error.retryable, "did not begin" in error.message, "possible" in error.message


@pytest.mark.parametrize("kind", ["socket", "port"])
@pytest.mark.parametrize(("idempotent", "tries"), [(False, 1), (True, 2)])
async def test_i11_a_call_whose_provider_is_down_did_not_begin(
    stand: Stand, kind: str, idempotent: bool, tries: int
) -> None:
    run = await stand.run()
    with (
        socket.socket() as taken
    ):  # bound and not listening: whoever connects is refused, and nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        address = {
            "socket": f"unix:{stand.folder}/nobody.sock",
            "port": f"127.0.0.1:{taken.getsockname()[1]}",
        }[kind]
        stand.grant(run, provider=address, idempotent=idempotent, max_attempts=tries)
        response = await stand.invoke(run)
    assert told(response) == ("tool_unavailable", True, True, False)
    assert (await stand.stored()).attempts == tries
    assert await stand.invoke(run) == response  # the outcome of this call; the model may make another


async def test_i11_a_call_whose_provider_answers_no_connection_in_time_did_not_begin(stand: Stand) -> None:
    run = await stand.run()
    path = f"{stand.folder}/mute.sock"
    stand.grant(run, provider=f"unix:{path}", timeout_seconds=1)
    async with mute_server(path):
        assert told(await stand.invoke(run)) == ("tool_unavailable", True, True, False)


@pytest.mark.parametrize(("idempotent", "tries"), [(False, 1), (True, 2)])
async def test_i11_a_call_whose_provider_dies_in_the_middle_of_it_may_have_happened(
    stand: Stand, idempotent: bool, tries: int
) -> None:
    run = await stand.run()
    wire = Wire(f"unix:{stand.folder}/wire.sock", stand.provider_address)
    await wire.start()
    stand.grant(run, provider=wire.address, idempotent=idempotent, max_attempts=tries)
    hanging = Hanging(stand.provider)
    call = asyncio.create_task(stand.invoke(run))
    await hanging.has(1)
    await wire.cut()
    # The second try of an idempotent tool finds nobody, and what the first one did is not forgotten for it.
    assert told(await call) == ("tool_unavailable", idempotent, False, not idempotent)
    assert (await stand.stored()).attempts == tries


async def test_i11_what_a_provider_says_of_connections_behind_it_is_no_word_on_its_own(stand: Stand) -> None:
    """It was reached, so something may have happened, whatever text it passes on."""
    run = await stand.run()
    stand.grant(run)

    async def pass_on(_: Asked) -> Answer:
        raise ProviderStatus(grpc.StatusCode.UNAVAILABLE, "connections to all backends failing; last error: refused")

    stand.provider.behaviour = pass_on
    assert told(await stand.invoke(run)) == ("tool_unavailable", False, False, True)


async def test_a_provider_that_comes_up_is_reached(stand: Stand) -> None:
    run: Run = await stand.run()
    wire = Wire(f"unix:{stand.folder}/wire.sock", stand.provider_address)
    stand.grant(run, provider=wire.address)
    assert told(await stand.invoke(run, "early"))[2]
    await wire.start()
    number = 0
    async with asyncio.timeout(PATIENCE):
        # Until the channel looks again, which it does by itself.
        while (response := await stand.invoke(run, f"call-{number}")).completed.outcome != SUCCESS:
            assert told(response)[2]
            number += 1
            await asyncio.sleep(0.05)
    await wire.cut()
