"""Nothing is left of 200 turns that completed, failed, were cut off or cancelled (I20)."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from adapters.sdk.testing import connected, kinds
from conformance.drivers.agentcore import HARNESS_ARN, REGION
from tests.adapters.claude_leaks.campaign import reached
from tests.adapters.processes import AdapterProcess, children_of
from tests.standins.agentcore import AgentCore
from tests.support.adapters import folder

__all__ = ["folder"]
TURNS, AT_ONCE = 200, 10
SAY = {"text": "begun"}
SCRIPTS = {
    "run.completed": [[SAY], [{"chunks": ["x"] * 50}]],
    "run.failed": [
        [{"refuse": "ValidationException"}],
        [SAY, {"exception": "internalServerException"}],
        [SAY, {"end": "cut"}],
        [SAY, {"end": "half"}],
        [SAY, {"end": "clean"}],
    ],
    "run.cancelled": [[SAY, {"hang": "stream"}]],
}
MEMORY_MIB = 24.0
pytestmark = pytest.mark.timeout(300)


def _memory(pid):
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def _held(pid):
    """Descriptors, threads and children of the host."""
    return (
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        len(list(Path(f"/proc/{pid}/task").iterdir())),
        len(children_of(pid)),
    )


async def _turn(client, wanted, script):
    one = client.another()
    await one.create()
    fence = one.fence(turn=1, run_id=f"run-{one.binding_id}")
    call = one.start(fence, one.input(json.dumps({"script": script})))
    drafts = []
    async for response in call:
        drafts += response.batch.drafts
        if wanted == "run.cancelled" and "content.delta" in kinds(drafts) and "run.cancelled" not in kinds(drafts):
            await one.cancel(fence)
    assert kinds(drafts)[-1] == wanted
    await one.cleanup()


async def _play(client, turns, seed):
    chosen = random.Random(seed)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(wanted, script):
        async with room:
            await _turn(client, wanted, script)

    wanted = [chosen.choice(list(SCRIPTS)) for _ in range(turns)]
    await asyncio.gather(*(one(each, chosen.choice(SCRIPTS[each])) for each in wanted))
    return set(wanted)


async def test_i20_nothing_is_left_of_200_turns(folder):
    environment = {"AWS_ACCESS_KEY_ID": "AKIDDUMMY", "AWS_SECRET_ACCESS_KEY": "d", "AWS_EC2_METADATA_DISABLED": "true"}
    host = await AdapterProcess(folder, module="adapters.agentcore", environment=environment).start()
    try:
        with AgentCore(recording=False) as standin:
            settings = {
                "region": REGION,
                "endpoint_url": standin.url,
                "harness_arn": HARNESS_ARN,
                "stop_session": False,
                "max_retries": 0,
            }
            async with connected(host.address, harness_id="agentcore", profile_settings=settings) as client:
                # Everything that is made once is there.
                await _play(client, 40, seed=7)
                await reached(lambda: standin.open_connections == 0, "no connection is open")
                before, memory = _held(host.pid), _memory(host.pid)
                assert await _play(client, TURNS, seed=20) == set(SCRIPTS)
                await reached(lambda: standin.open_connections == 0, "no connection is open")
                await reached(
                    lambda: all(a <= b for a, b in zip(_held(host.pid), before, strict=True)), "it is as before"
                )
                assert _memory(host.pid) - memory <= MEMORY_MIB
    finally:
        await host.stop()
