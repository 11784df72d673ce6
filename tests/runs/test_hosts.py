"""Runtimes that ask for a credential, and runtimes whose sandbox ends when nobody uses it (I28, I29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import yaml

from harness.common.v1 import error_pb2
from harness.run.v1 import run_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.mesh import KILL, PATIENCE, Client, Mesh, kind, text

CREDENTIAL = "canary-credential-of-the-adapter"
IDLE_SECONDS = 3


@pytest.fixture(scope="module")
def guarded_mesh() -> Iterator[Mesh]:
    """A mesh whose adapter host asks for a credential, and which has a sandbox service."""
    mesh = Mesh()
    mesh.reference.environment["HARNESS_ADAPTER_TOKEN"] = CREDENTIAL
    (mesh.folder / "credential").write_text(CREDENTIAL)
    config = yaml.safe_load((mesh.folder / "harness.yaml").read_text())
    config["adapters"][0]["token_file"] = str(mesh.folder / "credential")
    sandbox = {"worker_module": "adapters.reference", "isolation": "none", "idle_seconds": IDLE_SECONDS}
    config["adapters"][0]["profiles"].append({"id": "sandboxed", "placement": "sandbox_pod", "sandbox": sandbox})
    (mesh.folder / "harness.yaml").write_text(yaml.safe_dump(config))
    sandboxes = mesh.service_part("sandbox", {"HARNESS_CATALOG_ADDRESS": mesh.address("catalog")})
    mesh.runs.environment["HARNESS_SANDBOX_ADDRESS"] = mesh.address("sandbox")
    mesh.start()
    try:
        sandboxes.start()
        yield mesh
    finally:
        if sandboxes.process is not None:
            sandboxes.end()
        mesh.close()


@pytest.fixture
def caller(guarded_mesh: Mesh, clients: Callable[..., Client]) -> Client:
    return clients(guarded_mesh)


async def test_i28_a_host_is_called_with_its_own_credential_and_none_reaches_a_log(
    guarded_mesh: Mesh, caller: Client
) -> None:
    agent = await caller.agent()
    ended = await caller.start(agent, {"n": 3})
    assert (await caller.kinds(ended.run_id))[-1] == "run_completed"
    hanging = await caller.start(agent, {"script": [{"text": "begun"}, {"hang": True}]}, "talk")
    await caller.seen(hanging.run_id, "content_delta")
    assert (await caller.cancel(hanging.run_id)).status == run_pb2.RUN_STATUS_CANCELLED
    assert (await caller.clear(agent, "talk")).cleared
    for log in guarded_mesh.folder.glob("*.log"):
        assert CREDENTIAL not in log.read_text()
        assert "not_released" not in log.read_text()
        assert "not_cancelled" not in log.read_text()


async def test_i9_a_run_on_a_host_with_a_credential_is_taken_over(guarded_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, {"script": [{"text": "one"}, {"sleep": 4}, {"text": "two"}]})
    await caller.seen(run.run_id, "content_delta")
    guarded_mesh.runs.restart(KILL)
    assert (await caller.kinds(run.run_id))[-1] == "run_completed"


async def test_i29_a_run_longer_than_the_idle_time_keeps_its_sandbox(caller: Client) -> None:
    agent = await caller.agent("sandboxed")
    run = await caller.start(agent, {"script": [{"text": "one"}, {"sleep": IDLE_SECONDS * 2}, {"text": "two"}]})
    assert (await caller.kinds(run.run_id))[-1] == "run_completed"


async def test_i9_a_host_that_never_starts_a_run_fails_it_in_time(clients: Callable[..., Client]) -> None:
    mesh = Mesh()
    mesh.reference.command = ["-m", "tests.runs.refusing_host", *mesh.reference.command[2:]]
    mesh.start()
    try:
        caller = clients(mesh)
        run = await caller.start(await caller.agent(), "hello")
        events = await caller.events(run.run_id)
        assert events[-1].payload.run_failed.category == error_pb2.ERROR_CATEGORY_UNAVAILABLE
    finally:
        mesh.close()


async def test_i34_a_stored_run_waits_for_a_host_that_the_catalog_cannot_see_yet(
    clients: Callable[..., Client],
) -> None:
    mesh = Mesh(settings={"HARNESS_REATTACH_SECONDS": "60"})
    mesh.start()
    try:
        caller = clients(mesh)
        agent = await caller.agent()
        first = await caller.start(agent, {"script": [{"text": "begun"}, {"hang": True}]}, "talk")
        await caller.seen(first.run_id, "content_delta")
        second = await caller.start(agent, "hello", "talk", on_conflict=binding_pb2.CONFLICT_POLICY_ENQUEUE)
        mesh.reference.end(KILL)
        async with asyncio.timeout(PATIENCE):
            while True:  # until the catalog says that the host is away
                try:
                    await caller.cancel((await caller.start(agent)).run_id)
                except HarnessError as error:
                    if error.reason is not Reason.HARNESS_UNAVAILABLE:
                        raise
                    break
        # The second run is stored, and the first one is only looking for its host.
        assert (await caller.cancel(first.run_id)).status == run_pb2.RUN_STATUS_CANCELLED
        async with asyncio.timeout(PATIENCE):
            while (await caller.get(second.run_id)).status == run_pb2.RUN_STATUS_QUEUED:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)
        mesh.reference.start()
        assert (await caller.kinds(second.run_id))[-1] == "run_completed"
    finally:
        mesh.close()


async def test_a_session_the_adapter_names_is_recorded_before_the_first_turn_and_opened_once(
    clients: Callable[..., Client],
) -> None:
    mesh = Mesh()
    mesh.reference.command = ["-m", "tests.runs.named_host", *mesh.reference.command[2:]]
    mesh.start()
    try:
        caller = clients(mesh)
        agent = await caller.agent()
        name = ""
        for _ in range(2):
            run = await caller.start(agent, "hello", "c")
            events = await caller.events(run.run_id)
            name = (await caller.settled(agent, "c")).native_session_id
            assert name.startswith("toy-")
            assert text(events) == f"{name} 1 nobody"
            # The turn came with it: nobody had to announce it in the stream.
            assert "session_updated" not in [kind(event) for event in events]
        await caller.clear(agent, "c")
        events = await caller.events((await caller.start(agent, "hello", "c")).run_id)
        assert text(events).endswith(f" 2 {agent}")
        assert not text(events).startswith(name)
    finally:
        mesh.close()
