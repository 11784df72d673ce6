"""Tool calls through the whole mesh: the catalog's grants, the runs service's facade, the reference harness (run protocol, Tools)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
import yaml
from google.protobuf import json_format

from harness.event.v1 import payload_pb2
from harness.run.v1 import run_pb2
from harness.tool.v1 import tool_broker_service_pb2, tool_broker_service_pb2_grpc
from services.common.capability_token import generate_private_key
from services.common.channels import connect
from services.common.errors import HarnessError, Reason
from services.common.store import BY_KEY, open_record_store
from services.runs.store import RUNS
from services.runs.tools.grant import mark_of
from services.runs.tools.store import BY_RUN, TOOL_CALLS
from tests.runs.mesh import KILL, LONG, PATIENCE, Client, Mesh, fence_of, kind

SUM = {"tool": {"id": "sum", "name": "calculator", "arguments": {"expression": "20 + 22"}}}
CLOCK_AND_SUM = {"bindings": [{"tool_id": "clock"}, {"tool_id": "calculator"}]}


def conversation() -> str:
    return f"c-{uuid.uuid4().hex}"


class Runtime:
    """Calls the broker as the runtime of a run does."""

    def __init__(self, client: Client, replica: str = "runs") -> None:
        self._client = client
        self._peer = connect(client.mesh.address(f"{replica}-tools"))
        self._stub = tool_broker_service_pb2_grpc.ToolBrokerServiceStub(self._peer.channel)

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._peer.close()

    async def call(self, agent: str, talk: str, **call: Any) -> tool_broker_service_pb2.InvokeToolResponse:
        """One call of the run that holds the slot."""
        fence = fence_of(await self._client.binding(agent, talk))
        request = tool_broker_service_pb2.InvokeToolRequest(fence=fence)
        return await self.ask(json_format.ParseDict(call, request))

    async def ask(
        self, request: tool_broker_service_pb2.InvokeToolRequest
    ) -> tool_broker_service_pb2.InvokeToolResponse:
        """One request, with the token that the run of its fence got."""
        marks = (mark_of("clock"), mark_of("calculator"))
        token = self._client.mesh.capability(request.fence, "tool", marks)
        return await self._peer.call(self._stub.InvokeTool, request, credential=token, timeout=PATIENCE)


async def test_a_run_calls_its_agents_tools_until_it_is_cancelled(client: Client) -> None:
    agent, talk = await client.agent(tools=CLOCK_AND_SUM), conversation()
    run = await client.start(agent, {"scripts": [[{"hang": True}]]}, talk)
    await client.seen(run.run_id, "run_started")
    async with Runtime(client) as runtime:
        call = {"tool_call_id": "t1", "tool_id": "clock"}
        first = await runtime.call(agent, talk, **call)
        told = json_format.MessageToDict(first.completed.result)
        assert abs(time.time() - _seconds(told["time"])) < 600
        assert await runtime.call(agent, talk, **call) == first
        with pytest.raises(HarnessError) as refused:
            await runtime.call(agent, talk, tool_call_id="t2", tool_id="http_get")
        assert refused.value.reason is Reason.PERMISSION_DENIED
        fence = fence_of(await client.binding(agent, talk))
        await client.cancel(run.run_id)
        # I12: the cancel is answered, and no new call is accepted.
        request = tool_broker_service_pb2.InvokeToolRequest(fence=fence, tool_call_id="t3", tool_id="clock")
        with pytest.raises(HarnessError) as refused:
            await runtime.ask(request)
        assert refused.value.reason is Reason.STALE_LEASE


async def test_i33_the_signing_key_is_changed_while_runs_go_on(client: Client) -> None:
    mesh = client.mesh
    of_before = mesh.sessions.environment["HARNESS_CAPABILITY_VERIFY_KEYS"]
    new = {"HARNESS_CAPABILITY_SIGNING_KEY": generate_private_key()}
    changed = mesh.runs_part("changed", HARNESS_CAPABILITY_VERIFY_KEYS=of_before, **new)
    careless = mesh.runs_part("careless", **new)
    agent, talk = await client.agent(tools=CLOCK_AND_SUM), conversation()
    run = await client.start(agent, {"scripts": [[{"hang": True}]]}, talk)
    await client.seen(run.run_id, "run_started")
    try:
        for part in (changed, careless):
            part.start()
        async with Runtime(client, "changed") as runtime:
            call = {"tool_call_id": "t1", "tool_id": "clock"}
            assert (await runtime.call(agent, talk, **call)).completed.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS
        async with Runtime(client, "careless") as runtime:
            with pytest.raises(HarnessError) as refused:
                await runtime.call(agent, talk, **call)
            assert refused.value.reason is Reason.UNAUTHENTICATED
    finally:
        for part in (changed, careless):
            if part.process is not None:
                part.end(KILL)
        await client.cancel(run.run_id)


async def test_a_script_calls_a_tool(client: Client) -> None:
    agent = await client.agent(tools=CLOCK_AND_SUM)
    run = await client.start(agent, {"scripts": [[SUM, {"text": "done"}]]})
    events = await client.events(run.run_id)
    done = next(event.payload.tool_completed for event in events if kind(event) == "tool_completed")
    assert done.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS
    assert json_format.MessageToDict(done.result) == {"value": "42"}
    assert kind(events[-1]) == "run_completed"


@pytest.mark.parametrize(
    ("decided", "outcome", "value"),
    [
        ({"approve": True}, payload_pb2.TOOL_OUTCOME_SUCCESS, {"value": "42"}),
        ({"edit": {"expression": "6 * 7 + 1"}}, payload_pb2.TOOL_OUTCOME_SUCCESS, {"value": "43"}),
        ({"reject": "no"}, payload_pb2.TOOL_OUTCOME_REJECTED, None),
    ],
)
async def test_i24_i25_a_call_waits_for_a_person_and_goes_on_as_decided(
    client: Client, decided: dict[str, Any], outcome: int, value: Any
) -> None:
    policy = {"approval_policy": "APPROVAL_POLICY_ALWAYS"}
    agent, talk = await client.agent(tools={"bindings": [{"tool_id": "calculator", **policy}]}), conversation()
    run = await client.start(agent, {"scripts": [[SUM, {"text": "done"}]]}, talk)
    kinds = await client.kinds(run.run_id)
    assert "tool_started" not in kinds
    assert kinds[-2:] == ["interrupt_requested", "run_interrupted"]
    state = await client.interrupt_state(agent, talk)
    assert state is not None
    (approval,) = state.tool_approvals
    call_id = approval.tool_call_id
    with pytest.raises(HarnessError) as refused:
        await client.resume(run.run_id, state.interrupt_id, calls={call_id: {"edit": {"expression": "1", "more": 1}}})
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert [issue.path for issue in refused.value.details] == ["tool_decisions.decisions[0].edit"]
    resumed: run_pb2.Run = await client.resume(run.run_id, state.interrupt_id, calls={call_id: decided})
    events = await client.events(resumed.run_id)
    done = next(event.payload.tool_completed for event in events if kind(event) == "tool_completed")
    assert done.outcome == outcome
    assert (json_format.MessageToDict(done.result) if done.HasField("result") else None) == value
    assert kind(events[-1]) == "run_completed"


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


async def test_i35_calls_go_with_the_run_that_made_them(mesh: Mesh, clients: Callable[..., Client]) -> None:
    url = f"sqlite://{mesh.folder}/short.sqlite3"
    part = mesh.runs_part(
        "short", HARNESS_STORE_URL=url, HARNESS_RETENTION_SECONDS="5"
    )  # time to see its events on a loaded machine
    part.start()
    records = await open_record_store(url, [RUNS, TOOL_CALLS])
    try:
        client = clients(mesh, None, "short")
        agent, talk = await client.agent(tools=CLOCK_AND_SUM), conversation()
        run = await client.start(agent, {"scripts": [[SUM]]}, talk)
        assert "tool_completed" in await client.kinds(run.run_id)
        async with asyncio.timeout(
            LONG
        ):  # the record goes last: what is left of a run outlives its events by a retention
            while await records.count(RUNS, BY_KEY, (run.run_id,)):  # noqa: ASYNC110 - nothing signals it: a bounded poll
                await asyncio.sleep(0.05)
        assert await records.count(TOOL_CALLS, BY_RUN, (run.run_id,)) == 0
    finally:
        await records.close()
        part.end(KILL)


async def test_a_start_without_a_tool_broker_is_refused_and_says_what_to_do(
    mesh: Mesh, clients: Callable[..., Client]
) -> None:
    part = mesh.runs_part("bare", HARNESS_STORE_URL=f"sqlite://{mesh.folder}/bare.sqlite3")
    del part.environment["HARNESS_TOOL_FACADE_LISTEN"]
    part.start()
    try:
        client = clients(mesh, None, "bare")
        with pytest.raises(HarnessError) as refused:
            await client.start(await client.agent(tools=CLOCK_AND_SUM), "hello")
        assert refused.value.reason is Reason.CONFIGURATION_INVALID
        assert [issue.path for issue in refused.value.details] == ["blueprint.tools.bindings"]
        assert "HARNESS_TOOL_FACADE_LISTEN" in refused.value.details[0].message
        plain = await client.start(await client.agent(), "hello")
        assert (await client.kinds(plain.run_id))[-1] == "run_completed"
    finally:
        part.end(KILL)


async def refused(attempt: Callable[[], Awaitable[run_pb2.Run]], client: Client) -> HarnessError:
    """How a start is refused, once it is known that it has to be: what the catalog said a moment ago still counts."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                await client.ended((await attempt()).run_id)
            except HarnessError as error:
                if not error.retryable:
                    return error
                await asyncio.sleep(0.05)


async def test_a_tool_that_is_registered_no_more_refuses_starts_and_resumes_and_keeps_the_question(
    rough_mesh: Mesh, clients: Callable[..., Client]
) -> None:
    client, catalog, operator_file = clients(rough_mesh), rough_mesh.catalog, rough_mesh.folder / "harness.yaml"
    policy = {"approval_policy": "APPROVAL_POLICY_ALWAYS"}
    agent = await client.agent(tools={"bindings": [{"tool_id": "clock"}, {"tool_id": "calculator", **policy}]})
    talk = conversation()
    run = await client.start(agent, {"scripts": [[SUM, {"text": "done"}]]}, talk)
    assert (await client.kinds(run.run_id))[-1] == "run_interrupted"
    state = await client.interrupt_state(agent, talk)
    assert state is not None
    calls = {state.tool_approvals[0].tool_call_id: {"approve": True}}

    async def decide() -> run_pb2.Run:
        return await client.resume(run.run_id, state.interrupt_id, calls=calls)

    before = operator_file.read_text()
    without = yaml.safe_load(before)
    without["tools"] = [tool for tool in without["tools"] if tool["id"] != "calculator"]
    try:
        operator_file.write_text(yaml.safe_dump(without))
        catalog.restart()
        # The tool is gone for starts that have nothing to lose, before the decision is tried.
        for attempt in (lambda: client.start(agent, {"scripts": [[{"text": "no tool"}]]}), decide):
            error = await refused(attempt, client)
            assert error.reason is Reason.CONFIGURATION_INVALID
            (issue,) = error.details
            assert (issue.path, issue.code) == ("blueprint.tools.bindings[1].tool_id", "tool_unregistered")
    finally:
        operator_file.write_text(before)
        catalog.restart()
    assert (await client.interrupt_state(agent, talk)) == state
    async with asyncio.timeout(LONG):
        while True:
            try:
                resumed = await decide()
                break
            except HarnessError as error:
                if not error.retryable and error.reason is not Reason.CONFIGURATION_INVALID:
                    raise
                await asyncio.sleep(0.05)
    assert (await client.kinds(resumed.run_id))[-1] == "run_completed"
