"""Adapters are certified side by side, whatever others on the machine do (I23)."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapters.sdk.testing import connected
from services.common.errors import HarnessError
from tests.adapters.processes import AdapterProcess
from tests.conformance.conftest import ROOT, certify
from tests.runs.mesh import LONG, Client, Mesh, Part, kind

REPORTS = ROOT / "build" / "certification"
pytestmark = pytest.mark.timeout(600)


async def test_i23_two_are_certified_while_a_third_floods_and_a_fourth_hangs(start, folder: Path):
    first, flooding, hanging = await start(), await start(), await start()
    second = await AdapterProcess(folder, "adapters.betterproto", name="second").start()
    hanging.process.send_signal(signal.SIGSTOP)
    flooded = asyncio.Event()

    async def flood() -> int:
        """Turns of many events, one after the other, until it is told to end; how many there were."""
        turns = 0
        async with connected(flooding.address) as client:
            while not flooded.is_set():
                drafts = await client.turn(json.dumps({"n": 2_000, "size": 64}))
                assert len(drafts) == 2_001
                turns += 1
        return turns

    work = asyncio.create_task(flood())
    try:
        # Their reports stay, beside those of the adapters in other languages.
        made = await asyncio.gather(
            certify("--target", first.address, "--json", "--report", str(REPORTS / "reference")),
            certify("--target", second.address, "--json", "--report", str(REPORTS / "reference_betterproto")),
        )
        refused = await certify("--target", hanging.address)
    finally:
        flooded.set()
        hanging.process.send_signal(signal.SIGCONT)
        await second.stop()
    assert [one.document["verdict"] for one in made] == ["certified", "certified"]
    assert [one.document["adapter"]["harness_id"] for one in made] == ["reference", "reference_betterproto"]
    assert await work > 0
    # The one that hangs is said to be away, and nobody waits for it for ever.
    assert refused.code != 0
    assert refused.err.strip()


# --- behind one control plane ---

GOOD = ("reference", "second")
FLOODING, HANGING = "flooding", "hanging"


@contextlib.contextmanager
def one_control_plane() -> Generator[tuple[Mesh, dict[str, Part]]]:
    """Sessions, catalog and runs, and four adapters that they all know."""
    mesh = Mesh()
    adapters = [
        {
            "harness_id": name,
            "address": mesh.address(name),
            "profiles": [{"id": "faults", "placement": "provider_managed", "settings": {"allow_faults": True}}],
        }
        for name in (*GOOD, FLOODING, HANGING)
    ]
    (mesh.folder / "harness.yaml").write_text(yaml.safe_dump({"version": 1, "adapters": adapters}))
    parts = {
        name: Part(
            name,
            ["-m", "tests.conformance.neighbour", "--listen", mesh.address(name)],
            {**mesh.reference.environment, "NEIGHBOUR": name},
            mesh.folder / f"{name}.log",
        )
        for name in (GOOD[1], FLOODING, HANGING)
    }
    try:
        for part in parts.values():
            part.begin()
        for part in parts.values():
            part.wait_ready()
        mesh.start()
        yield mesh, parts
    finally:
        for part in parts.values():
            if part.process is not None:
                part.process.send_signal(signal.SIGCONT)
                part.end(signal.SIGKILL)
        if mesh.folder.exists():
            mesh.close()


async def completed(client: Client, agent_id: str, message: Any, said: str = "") -> None:
    """Plays a turn to its end, which is a good one."""
    run = await client.start(agent_id, message)
    events = await client.events(run.run_id)
    assert kind(events[-1]) == "run_completed", events[-1]
    if said:
        assert "".join(event.payload.content_delta.text for event in events) == said


async def ready(mesh: Mesh, service: str) -> bool:
    """What readiness says of a service now."""
    async with grpc.aio.insecure_channel(
        mesh.address(service), options=[("grpc.default_authority", "localhost")]
    ) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the package carries no types
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=LONG)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_i23_behind_one_control_plane_a_flood_and_a_hang_stop_nobody_else():
    with one_control_plane() as (mesh, parts):
        client = Client(mesh)
        try:
            agents = {
                name: await client.agent(harness={"id": name, "profile_id": "faults"})
                for name in (*GOOD, FLOODING, HANGING)
            }
            for agent_id in agents.values():
                await completed(client, agent_id, {"script": [{"text": "well"}]}, "well")
            hanging = parts[HANGING].process
            assert hanging is not None
            hanging.send_signal(signal.SIGSTOP)
            stuck = await client.start(agents[HANGING], "hello")
            over, flooded = asyncio.Event(), asyncio.Event()

            async def flood() -> int:
                turns = 0
                while not over.is_set():
                    await completed(client, agents[FLOODING], {"n": 2_000, "size": 64})
                    turns += 1
                    flooded.set()
                return turns

            flooding = [asyncio.create_task(flood()) for _ in range(2)]
            try:
                for number in range(3):
                    for name in GOOD:
                        said = f"{name} {number}"
                        await completed(client, agents[name], {"script": [{"text": said}]}, said)
                    assert await ready(mesh, "catalog")
                    assert await ready(mesh, "runs")
                await asyncio.wait_for(flooded.wait(), LONG)
            finally:
                over.set()
                hanging.send_signal(signal.SIGCONT)
            assert all(turns > 0 for turns in await asyncio.gather(*flooding))
            await client.events(
                stuck.run_id
            )  # to its end, whatever it is: how long a start may take is the control plane's affair
            await within_long(lambda: completed(client, agents[HANGING], {"script": [{"text": "back"}]}, "back"))
        finally:
            await client.close()


async def within_long(work: Callable[[], Awaitable[None]]) -> None:
    """Does it once the control plane has seen that the adapter is back; nothing signals that, so it asks again, bounded."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await work()
            except HarnessError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.2)
