"""What adapters keep for each agent is seen to by the catalog: real catalogs and sessions, adapters served here, one of them AgentCore's on its real SDK."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.serve import serve_adapter
from harness.adapter.v1 import reconciliation_service_pb2 as pb
from harness.adapter.v1.adapter_service_pb2_grpc import add_AdapterServiceServicer_to_server
from harness.adapter.v1.reconciliation_service_pb2_grpc import (
    AgentReconciliationServiceServicer,
    add_AgentReconciliationServiceServicer_to_server,
)
from harness.session.v1 import binding_pb2
from harness.session.v1 import session_service_pb2 as session
from tests.catalog.conftest import Start
from tests.catalog.processes import AVAILABLE, blueprint, operator, until
from tests.catalog.toy_adapter import ToyAdapter, descriptor
from tests.sessions.processes import SUBJECT, Sessions
from tests.sessions.processes import Client as SessionsClient
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore

KEEPER = "keeper"
OFTEN = {"reconcile_seconds": 0.2, "adapter_poll_seconds": 0.2}


class Keeper(ToyAdapter, AgentReconciliationServiceServicer):
    """Keeps a thing for each agent of each profile, known by the setting `name`; `without` it says that there is no such service."""

    def __init__(self, **says: Any) -> None:
        super().__init__({"descriptor": descriptor(KEEPER), **says})
        self.kept: dict[str, set[str]] = {}
        self.rounds: list[tuple[str, list[str], list[str]]] = []
        self.again = asyncio.Event()

    async def ReconcileAgents(self, request: pb.ReconcileAgentsRequest, context: Any) -> pb.ReconcileAgentsResponse:
        await self._enter("ReconcileAgents", context)
        name = json_format.MessageToDict(request.profile_settings)["name"]
        living, ended = list(request.agent_ids), list(request.ended_agent_ids)
        self.rounds.append((name, living, ended))
        self.again.set()
        kept = self.kept.setdefault(name, set())
        made = set(living) - kept
        kept |= made
        removed = kept & set(ended) - set(living)
        kept -= removed
        return pb.ReconcileAgentsResponse(
            created=len(made), removed=len(removed), unlisted_agent_ids=sorted(kept - set(living))[:100]
        )

    async def next_round(self) -> None:
        """Returns after a whole round that began after the call: the second answer from now of each profile."""
        for _ in range(4):
            self.again.clear()
            await asyncio.wait_for(self.again.wait(), 90)


def keeper_entry(**changes: Any) -> dict[str, Any]:
    profiles = [
        {"id": "default", "placement": "provider_managed", "settings": {"name": "first"}},
        {"id": "second", "placement": "provider_managed", "settings": {"name": "second"}},
        {"id": "boxed", "placement": "sandbox_pod", "settings": {"name": "boxed"},
         "sandbox": {"worker_module": "adapters.reference"}},
    ]  # fmt: skip
    return {"harness_id": KEEPER, "address": f"unix:run/{KEEPER}.sock", "profiles": profiles} | changes


def agent(agent_id: str, profile_id: str = "default", harness_id: str = KEEPER, **changes: Any) -> dict[str, Any]:
    return blueprint(agent_id, harness={"id": harness_id, "profile_id": profile_id}, **changes)


Keep = Callable[..., Awaitable[Keeper]]


@pytest.fixture
async def keep(folder: Path, servers: dict[str, grpc.aio.Server]) -> Keep:
    async def keep_one(**says: Any) -> Keeper:
        keeper = Keeper(**says)
        server = grpc.aio.server()
        add_AdapterServiceServicer_to_server(keeper, server)
        add_AgentReconciliationServiceServicer_to_server(keeper, server)
        server.add_insecure_port(f"unix:{folder}/run/{KEEPER}.sock")
        await server.start()
        servers[KEEPER] = server
        return keeper

    return keep_one


@pytest.fixture
async def sessions(folder: Path) -> AsyncIterator[SessionsClient]:
    process = Sessions(folder, "sessions", {})
    await process.start()
    client = SessionsClient(process)
    yield client
    await client.close()
    await process.stop()


async def bind(sessions: SessionsClient, agent_id: str, harness_id: str = KEEPER) -> binding_pb2.Binding:
    """A conversation of the agent, pinned to the profile `default`, whose run is over."""
    sessions.agent = agent_id
    request = session.ReserveTurnRequest(
        agent_id=agent_id,
        conversation_id="talk",
        pin=binding_pb2.AgentPin(agent_version=1, harness_id=harness_id, profile_id="default"),
        run_id=f"run-{agent_id}",
        request_key=f"key-{agent_id}",
        on_conflict=binding_pb2.CONFLICT_POLICY_REJECT,
    )
    binding = (await sessions.call("ReserveTurn", request, SUBJECT)).binding
    await sessions.release(binding.binding_id, request.run_id)
    return binding


async def clear(sessions: SessionsClient, binding: binding_pb2.Binding) -> None:
    await sessions.begin_clear("talk")
    await sessions.finish_clear(binding.binding_id)


async def kept(keeper: Keeper, name: str = "first") -> set[str]:
    return keeper.kept.get(name, set())


async def test_agents_are_named_under_the_profile_of_their_newest_version(keep: Keep, start: Start) -> None:
    keeper = await keep()
    client = await start(operator(keeper_entry()), **OFTEN)
    await until(lambda: client.harness(KEEPER), lambda harness: harness.availability == AVAILABLE)
    for agent_id, profile_id in (("one", "default"), ("two", "second"), ("three", "boxed"), ("four", "default")):
        await client.save(agent(agent_id, profile_id))
    await client.disable("four")
    await until(lambda: kept(keeper), lambda names: "one" in names)
    await until(lambda: kept(keeper, "second"), lambda names: names == {"two"})
    # An edit moves the agent; what is in a sandbox is nobody's to keep.
    await client.save(agent("one", "second"))
    await until(lambda: kept(keeper, "second"), lambda names: names == {"one", "two"})
    await keeper.next_round()
    assert keeper.rounds[-1][1] in ([], ["one", "two"])
    assert {name for name, *_ in keeper.rounds} == {"first", "second"}


async def test_i4_what_an_agent_left_is_removed_with_its_last_conversation(
    keep: Keep, start: Start, sessions: SessionsClient
) -> None:
    keeper = await keep()
    keeper.kept["first"] = {"gone", "moved", "talking", "of-another-mesh"}
    client = await start(operator(keeper_entry()), sessions_address=sessions.sessions.address, **OFTEN)
    await until(lambda: client.harness(KEEPER), lambda harness: harness.availability == AVAILABLE)
    for agent_id in ("gone", "moved", "talking", "stays"):
        await client.save(agent(agent_id))
    binding = await bind(sessions, "talking")
    await client.save(agent("moved", "second"))
    await client.disable("gone")
    await client.disable("talking")
    left = {"talking", "stays", "of-another-mesh"}
    await until(lambda: kept(keeper), lambda names: names == left)
    await keeper.next_round()
    assert await kept(keeper) == left
    # The memory of a round goes with its process: another one finds it out again.
    await client.catalog.stop()
    await clear(sessions, binding)
    again = await start(operator(keeper_entry()), sessions_address=sessions.sessions.address, **OFTEN)
    await until(lambda: kept(keeper), lambda names: names == {"stays", "of-another-mesh"})
    await again.save(agent("gone"))
    await until(lambda: kept(keeper), lambda names: "gone" in names)


@pytest.mark.parametrize("address", [None, "unix:/nowhere/sessions.sock"])
async def test_nothing_ends_while_nobody_can_say_whether_it_is_needed(
    keep: Keep, start: Start, address: str | None
) -> None:
    keeper = await keep()
    keeper.kept["first"] = {"gone"}
    more = {} if address is None else {"sessions_address": address}
    client = await start(operator(keeper_entry()), **more, **OFTEN)
    await until(lambda: client.harness(KEEPER), lambda harness: harness.availability == AVAILABLE)
    await client.save(agent("gone"))
    await client.disable("gone")
    await client.save(agent("new"))
    # The others are seen to all the same.
    await until(lambda: kept(keeper), lambda names: "new" in names)
    await keeper.next_round()
    assert await kept(keeper) == {"gone", "new"}


async def test_an_adapter_without_the_service_is_asked_once_in_each_life(keep: Keep, start: Start) -> None:
    keeper = await keep(fail={"ReconcileAgents": ("UNIMPLEMENTED", "no such service")})
    await start(operator(keeper_entry()), **OFTEN)
    await until(lambda: asyncio.sleep(0, keeper.asked.get("ReconcileAgents")), lambda asked: asked == 1)
    looks = keeper.asked["CheckHealth"]
    await until(lambda: asyncio.sleep(0, keeper.asked["CheckHealth"]), lambda asked: asked > looks + 8)
    assert keeper.asked["ReconcileAgents"] == 1
    keeper.says["incarnation"] = "inc-2"
    await until(lambda: asyncio.sleep(0, keeper.asked["ReconcileAgents"]), lambda asked: asked == 2)


async def test_i23_an_adapter_that_never_answers_keeps_no_other_waiting(
    keep: Keep, host: Callable[..., Awaitable[ToyAdapter]], start: Start, folder: Path
) -> None:
    hanging = Keeper(descriptor=descriptor("hanging"), hang=["ReconcileAgents"])
    server = grpc.aio.server()
    add_AdapterServiceServicer_to_server(hanging, server)
    add_AgentReconciliationServiceServicer_to_server(hanging, server)
    server.add_insecure_port(f"unix:{folder}/run/hanging.sock")
    await server.start()
    try:
        keeper = await keep()
        entries = keeper_entry(), keeper_entry(harness_id="hanging", address="unix:run/hanging.sock")
        client = await start(operator(*entries), **OFTEN)
        await until(lambda: asyncio.sleep(0, hanging.asked.get("ReconcileAgents")), bool)
        await until(lambda: client.harness(KEEPER), lambda harness: harness.availability == AVAILABLE)
        await client.save(agent("one"))
        await until(lambda: kept(keeper), lambda names: names == {"one"})
        assert hanging.asked["ReconcileAgents"] == 1
    finally:
        hanging.released.set()
        await server.stop(0)


async def test_replicas_may_hold_rounds_at_once(keep: Keep, start: Start, sessions: SessionsClient) -> None:
    keeper = await keep()
    more = {"sessions_address": sessions.sessions.address, **OFTEN}
    client = await start(operator(keeper_entry()), **more)
    await start(operator(keeper_entry()), name="b", **more)
    await until(lambda: client.harness(KEEPER), lambda harness: harness.availability == AVAILABLE)
    for number in range(12):
        await client.save(agent(f"a{number}"))
    for number in range(0, 12, 2):
        await client.disable(f"a{number}")
    await until(lambda: kept(keeper), lambda names: names == {f"a{number}" for number in range(1, 12, 2)})


async def test_i4_agentcore_s_harnesses_come_and_go_with_their_agents(
    folder: Path, start: Start, sessions: SessionsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDDUMMY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    with AgentCore() as standin:
        server = await serve_adapter(AgentCoreAdapter, listen=f"unix:{folder}/run/agentcore.sock")
        try:
            await _come_and_go(standin, start, sessions)
        finally:
            await server.stop(0)


async def _come_and_go(standin: AgentCore, start: Start, sessions: SessionsClient) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/approved"
    settings = {
        "mode": "per_agent",
        "region": REGION,
        "endpoint_url": standin.url,
        "model": "model-a",
        "per_agent": {"deployment": "d", "execution_role_arn": role},
    }
    profile = {"id": "default", "placement": "provider_managed", "settings": settings}
    entry = {"harness_id": "agentcore", "address": "unix:run/agentcore.sock", "profiles": [profile]}

    async def harnesses() -> int:
        return sum(each.document["status"] != "DELETING" for each in standin.control.harnesses.values())

    more = {"sessions_address": sessions.sessions.address, **OFTEN}
    client = await start(operator(entry), **more)
    await until(lambda: client.harness("agentcore"), lambda harness: harness.availability == AVAILABLE)
    await client.save(agent("one", harness_id="agentcore"))
    await client.save(agent("two", harness_id="agentcore"))
    await until(harnesses, lambda count: count == 2)
    one, two = await bind(sessions, "one", "agentcore"), await bind(sessions, "two", "agentcore")
    await client.disable("one")
    await client.disable("two")
    await client.catalog.stop()
    sessions.agent = "one"
    await clear(sessions, one)
    profile["settings"] = {**settings, "model": "model-b"}
    again = await start(operator(entry), **more)
    await until(harnesses, lambda count: count == 1)
    # The one that is talked to stays as long as that, and an agent that is enabled again is brought to the profile's settings.
    await again.save(agent("two", harness_id="agentcore"))

    async def models() -> list[str]:
        kept = standin.control.harnesses.values()
        return [each.document["model"]["bedrockModelConfig"]["modelId"] for each in kept]

    await until(models, lambda names: names == ["model-b"])
    await again.disable("two")
    sessions.agent = "two"
    await clear(sessions, two)
    await until(harnesses, lambda count: count == 0)
