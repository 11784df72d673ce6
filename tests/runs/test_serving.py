"""A harness that no longer serves what an agent needs: refused field by field; and what becomes of the state of a conversation, by strategy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import SecretStr

from harness.adapter.v1 import descriptor_pb2
from harness.catalog.v1 import agent_pb2, resolution_service_pb2
from harness.common.v1 import blueprint_pb2, capability_pb2, error_pb2
from harness.event.v1 import payload_pb2
from harness.files.v1 import file_library_service_pb2, file_library_service_pb2_grpc
from harness.run.v1 import run_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.channels import connect
from services.common.errors import HarnessError, Reason
from services.runs import ending, serving
from services.runs.plan import Plan
from tests.runs.mesh import LONG, TOKEN, Client, Mesh, fence_of, text
from tests.runs.varied_host import VARIABLE

DURABLE = ["session.multi_turn", "thread.durable_commit"]
UNSUPPORTED = Reason.HARNESS_CAPABILITY_UNSUPPORTED


@dataclass
class Varied:
    """A mesh whose adapter can be replaced by its next version."""

    mesh: Mesh

    def become(self, version: str, *capabilities: str, strategy: str = "adapter_store") -> None:
        """Replace the adapter host."""
        says = {"version": version, "strategy": strategy, "capabilities": [*capabilities, "stream.text"]}
        self.mesh.reference.environment[VARIABLE] = json.dumps(says)
        self.mesh.reference.command = ["-m", "tests.runs.varied_host", "--listen", self.mesh.address("reference")]
        if self.mesh.reference.process is not None:
            self.mesh.reference.restart()


@pytest.fixture(scope="module")
def varied() -> Iterator[Varied]:
    mesh = Mesh()
    varied = Varied(mesh)
    varied.become("1.0.0", *DURABLE, "interrupt.form_input")
    replica = mesh.runs_part("runs-2")
    mesh.start()
    try:
        replica.start()
        yield varied
    finally:
        if replica.process is not None:
            replica.end()
        mesh.close()


@pytest.fixture
def callers(varied: Varied, clients: Callable[..., Client]) -> tuple[Client, Client]:
    """One subject at two replicas."""
    first = clients(varied.mesh)
    return first, clients(varied.mesh, first.subject, "runs-2")


async def refused(attempt: Callable[[], Awaitable[Any]]) -> HarnessError:
    """The refusal, once the replica has heard of the adapter's new version: bounded, for nothing signals that here."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                await attempt()
            except HarnessError as error:
                if error.reason is UNSUPPORTED:
                    return error
                if error.reason not in (Reason.HARNESS_UNAVAILABLE, Reason.HARNESS_SESSION_CONFLICT):
                    raise
            await asyncio.sleep(0.05)


async def accepted(attempt: Callable[[], Awaitable[run_pb2.Run]], client: Client) -> run_pb2.Run:
    """The completed run, once the adapter is known again."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await client.ended((await attempt()).run_id)
            except HarnessError as error:
                if error.reason not in (UNSUPPORTED, Reason.HARNESS_UNAVAILABLE, Reason.HARNESS_SESSION_CONFLICT):
                    raise
            await asyncio.sleep(0.05)


async def test_a_capability_that_disappears_blocks_starts_everywhere_and_comes_back(
    varied: Varied, callers: tuple[Client, Client]
) -> None:
    client, elsewhere = callers
    varied.become("1.0.0", *DURABLE)
    agent = await client.agent("default")
    assert (await accepted(lambda: client.start(agent, "hello", "talk"), client)).status == run_pb2.RUN_STATUS_COMPLETED
    varied.become("1.1.0")  # the upgrade lost what keeps a conversation
    for caller in (client, elsewhere):
        for conversation in ("talk", None):
            error = await refused(lambda caller=caller, talk=conversation: caller.start(agent, "hello", talk))
            assert not error.retryable
            (issue,) = error.details
            assert (issue.path, issue.code) == ("blueprint.thread.persistence", UNSUPPORTED.value)
            assert "set thread.persistence to ephemeral" in issue.message
    with pytest.raises(HarnessError) as unsaved:
        await client.save(agent, "default", description="Another.")
    assert [issue.path for issue in unsaved.value.details] == ["blueprint.thread.persistence"]
    # The next version does without: new conversations go on with it, the one that is pinned says what it lacks, and stays free.
    assert await client.save(agent, "default", thread={"persistence": "THREAD_PERSISTENCE_EPHEMERAL"}) == 2
    assert (await accepted(lambda: elsewhere.start(agent, "hello"), elsewhere)).agent_version == 2
    for _ in range(2):
        error = await refused(lambda: client.start(agent, "hello", "talk"))
        assert "version 1 of the agent" in error.message
    assert not (await client.settled(agent, "talk")).HasField("active")
    varied.become("1.2.0", *DURABLE)
    assert (await accepted(lambda: client.start(agent, "hello", "talk"), client)).agent_version == 1


async def test_files_need_a_harness_that_takes_them(varied: Varied, callers: tuple[Client, Client]) -> None:
    client, _ = callers
    varied.become("1.0.0", *DURABLE)
    agent = await client.agent("default")
    error = await refused(lambda: client.start(agent, "look", files=["file-1"]))
    assert {issue.path for issue in error.details} == {"files[0]", "files"}
    assert (await accepted(lambda: client.start(agent, "hello"), client)).status == run_pb2.RUN_STATUS_COMPLETED


async def test_a_turn_reads_the_files_it_names(varied: Varied, callers: tuple[Client, Client]) -> None:
    client, _ = callers
    other = Client(varied.mesh)
    varied.become("1.1.0", *DURABLE, "input.documents")
    agent = await client.agent("default")
    mine, image = await _upload(client, b"hello file"), await _upload(client, b"GIF89a" + bytes(20), "image/gif")
    theirs = await _upload(other, b"not yours")
    await other.close()

    async def read() -> run_pb2.Run:
        return await client.start(agent, "look", files=[mine, mine])

    run = await accepted(read, client)
    assert run.status == run_pb2.RUN_STATUS_COMPLETED
    said = text(await client.events(run.run_id))
    assert said.count("notes text/plain 10: hello file; ") == 2
    # I2: what is not there and what is another's is the same.
    for unknown in ("file-1", theirs):
        with pytest.raises(HarnessError) as caught:
            await client.start(agent, "look", files=[mine, unknown])
        assert caught.value.reason is Reason.INVALID_REQUEST
        assert [issue.path for issue in caught.value.details] == ["files[1]"]
    error = await refused(lambda: client.start(agent, "look", files=[mine, image]))
    assert {issue.path for issue in error.details} == {"files[1]", "files"}


async def _upload(client: Client, content: bytes, media_type: str = "text/plain") -> str:
    peer = connect(client.mesh.address("sessions"), SecretStr(TOKEN))

    async def sent() -> AsyncIterator[file_library_service_pb2.UploadFileRequest]:
        yield file_library_service_pb2.UploadFileRequest(
            name="notes", media_type=media_type, chunk=content, complete=True
        )

    try:
        stub: Any = file_library_service_pb2_grpc.FileLibraryServiceStub(peer.channel)
        answer = await peer.call(stub.UploadFile, sent(), subject=client.subject, timeout=LONG)
    finally:
        await peer.close()
    return answer.file.file_id


@pytest.mark.parametrize(
    ("strategy", "durability"),
    [
        ("ephemeral", payload_pb2.THREAD_DURABILITY_EPHEMERAL),
        ("remote_managed", payload_pb2.THREAD_DURABILITY_REMOTE),
        ("adapter_store", payload_pb2.THREAD_DURABILITY_DURABLE),
    ],
)
async def test_a_run_says_what_became_of_the_state_by_the_strategy_of_its_harness(
    varied: Varied,
    callers: tuple[Client, Client],
    strategy: str,
    durability: payload_pb2.ThreadDurability.ValueType,
) -> None:
    client, _ = callers
    varied.become(f"2.0.{durability}", *DURABLE, strategy=strategy)
    agent = await client.agent("default")

    async def turn() -> payload_pb2.RunCompleted:
        run = await accepted(lambda: client.start(agent, "hello", "talk"), client)
        return (await client.events(run.run_id))[-1].payload.run_completed

    # The very first: no start is executed by what is remembered of the adapter's version before.
    outcome = (await turn()).thread_state
    assert outcome.durability == durability
    following = (await turn()).thread_state
    assert following.durability == durability
    if strategy == "ephemeral":
        assert (outcome.durable_revision, following.durable_revision) == (0, 0)
    else:
        assert following.durable_revision == outcome.durable_revision + 1


async def test_i30_a_run_whose_state_became_uncertain_fails_so_and_the_head_before_it_stays(
    varied: Varied, callers: tuple[Client, Client]
) -> None:
    client, _ = callers
    varied.become("3.0.0", *DURABLE)
    agent, gates = await client.agent("default"), varied.mesh.folder

    async def hold(name: str) -> run_pb2.Run:
        return await client.start(agent, f"hold {gates / name}", "talk")

    (gates / "open").touch()
    kept = await accepted(lambda: hold("open"), client)
    assert kept.status == run_pb2.RUN_STATUS_COMPLETED
    head = (await client.settled(agent, "talk")).head.revision
    assert head
    run = await hold("later")
    await client.seen(run.run_id, "content_delta")
    await client.mark_uncertain(fence_of(await client.binding(agent, "talk")))
    (gates / "later").touch()
    failed = (await client.events(run.run_id))[-1].payload.run_failed
    assert (failed.code, failed.retryable) == ("thread_durability_uncertain", False)  # I11: never repeated
    assert failed.category == error_pb2.ERROR_CATEGORY_PERSISTENCE
    assert failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    assert (await client.get(run.run_id)).error_code == "thread_durability_uncertain"
    assert (await client.settled(agent, "talk")).head.revision == head
    following = await accepted(lambda: client.start(agent, "hello", "talk"), client)
    assert text(await client.events(following.run_id)) == f"revision {head}, parts 1"


def plan(*native: str, agent: blueprint_pb2.AgentBlueprint | None = None) -> Plan:
    claim = capability_pb2.Capability(level=capability_pb2.CAPABILITY_LEVEL_NATIVE)
    agent = agent or blueprint_pb2.AgentBlueprint(
        harness=blueprint_pb2.HarnessSelection(id="toy"),
        thread=blueprint_pb2.ThreadSpec(persistence=blueprint_pb2.THREAD_PERSISTENCE_DURABLE),
        skills=["s"],
    )
    descriptor = descriptor_pb2.Descriptor(capabilities=dict.fromkeys(native, claim))
    profile = resolution_service_pb2.ResolveProfileResponse(descriptor=descriptor)
    return Plan(agent_pb2.AgentVersion(version=3, blueprint=agent), profile)


def test_a_run_that_waited_while_its_harness_changed_fails_with_every_field() -> None:
    serving.check_agent(plan("skills", "session.multi_turn"))
    with pytest.raises(serving.Unserved) as caught:
        serving.check_agent(plan())
    failure = ending.failure_of(caught.value)
    assert (failure.code, failure.category, failure.retryable) == (UNSUPPORTED.value, "configuration", False)
    assert "blueprint.skills: " in failure.message
    assert "blueprint.thread.persistence: " in failure.message


@pytest.mark.parametrize(("sensitive", "native"), [(True, ()), (False, ()), (True, ("interrupt.tool_approval",))])
def test_a_tool_that_became_sensitive_needs_a_harness_that_can_wait(sensitive: bool, native: tuple[str, ...]) -> None:
    binding = blueprint_pb2.ToolBinding(tool_id="t", approval_policy=blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY)
    agent = blueprint_pb2.AgentBlueprint(
        harness=blueprint_pb2.HarnessSelection(id="toy"), tools=blueprint_pb2.ToolsSpec(bindings=[binding])
    )
    grant = resolution_service_pb2.ToolGrant(
        descriptor=runtime_pb2.ToolDescriptor(tool_id="t", sensitive=sensitive), approval_policy=binding.approval_policy
    )
    wanted = replace(plan("tool.builtin", *native, agent=agent), grants=(grant,))
    serving.check_agent(wanted)
    if not sensitive or native:
        serving.check_grants(wanted)
        return
    with pytest.raises(serving.Unserved) as caught:
        serving.check_grants(wanted)
    assert [issue.path for issue in caught.value.details] == ["blueprint.tools.bindings[0].approval_policy"]


def test_every_tool_that_is_not_registered_is_told_at_its_field_also_to_a_run_that_waited() -> None:
    bound = [blueprint_pb2.ToolBinding(tool_id=tool_id) for tool_id in ("a", "b", "c")]
    wanted = plan("tool.builtin", agent=blueprint_pb2.AgentBlueprint(tools=blueprint_pb2.ToolsSpec(bindings=bound)))
    one = resolution_service_pb2.ToolGrant(descriptor=runtime_pb2.ToolDescriptor(tool_id="b"))
    with pytest.raises(serving.ToolsMissing) as caught:
        serving.granted(wanted, [one], has_broker=True)
    paths = [f"blueprint.tools.bindings[{number}].tool_id" for number in (0, 2)]
    assert [issue.path for issue in caught.value.details] == paths
    failure = ending.failure_of(caught.value)
    assert (failure.code, failure.retryable) == ("configuration_invalid", False)
    assert all(path in failure.message for path in paths)


def test_i35_the_message_of_a_failed_run_is_bounded() -> None:
    scopes = [
        blueprint_pb2.MEMORY_SCOPE_USER,
        blueprint_pb2.MEMORY_SCOPE_AGENT,
        blueprint_pb2.MEMORY_SCOPE_ORGANIZATION,
    ]
    memory = blueprint_pb2.MemorySpec(
        enabled=True,
        read_scopes=scopes,
        kinds=[blueprint_pb2.MEMORY_KIND_SEMANTIC, blueprint_pb2.MEMORY_KIND_PROCEDURAL],
        write_scope=blueprint_pb2.MEMORY_SCOPE_USER,
        write_policy=blueprint_pb2.MEMORY_WRITE_POLICY_AUTOMATIC,
    )
    harness = blueprint_pb2.HarnessSelection(id="t" * 64)
    agent = blueprint_pb2.AgentBlueprint(harness=harness, memory=memory, skills=["s"])
    with pytest.raises(serving.Unserved) as caught:
        serving.check_agent(plan(agent=agent))
    assert len(caught.value.details) == 7
    assert len(ending.failure_of(caught.value).message) <= 1000
