"""`python -m bench.agentcore`: what the AgentCore adapter adds to boto3, a turn and an event, against the same stand-in of the service, in one run.

boto3 alone: one client for all turns, each read in a thread to the end of its stream. The figures are those of `bench.overhead`, with another
conversation at hand, as a host in use has, that shares the client; `alone_turn_ms` is a turn of a host's only conversation, which makes the client anew.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import boto3
from botocore.config import Config

from adapters.agentcore.adapter import AgentCoreAdapter
from bench.load.sampling import ProcessTree
from bench.overhead import Play, compared, main, measured, through_host
from conformance.plane.binding import Binding, Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.target import Target
from harness.common.v1 import placement_pb2
from tests.adapters.processes import AdapterProcess
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore

ARN = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/benched-0123456789"
DELTA = 16
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDDUMMY",
    "AWS_SECRET_ACCESS_KEY": "dummy",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


def directly(url: str) -> Play:
    """Turns of boto3 alone."""
    client = cast("Any", boto3).client(
        "bedrock-agentcore",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"total_max_attempts": 1}),
    )

    def read(message: str) -> int:
        answer = client.invoke_harness(
            harnessArn=ARN,
            runtimeSessionId=uuid.uuid4().hex + "bench",
            messages=[{"role": "user", "content": [{"text": message}]}],
        )
        return sum("contentBlockDelta" in event for event in answer["stream"])

    async def play(message: str) -> tuple[int, float]:
        begun = time.perf_counter()
        deltas = await asyncio.to_thread(read, message)
        return deltas, time.perf_counter() - begun

    return play


def burst(count: int) -> str:
    """A message that the stand-in answers with so many deltas."""
    return json.dumps({"script": [{"burst": count, "size": DELTA}]})


async def bench(turns: int, events: int) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="ba-") as name, AgentCore(recording=False) as service:
        canaries = Canaries()
        host = AdapterProcess(Path(name), module="adapters.agentcore", environment=KEYS)
        await host.start()
        try:
            target = Target(host.address, canaries)
            async with Facades(canaries, host.address) as facades:
                setting = Setting(
                    target,
                    facades,
                    AgentCoreAdapter().descriptor,
                    Observations(),
                    False,
                    placement_pb2.PLACEMENT_PROVIDER_MANAGED,
                    {"region": REGION, "endpoint_url": service.url, "harness_arn": ARN},
                    {},
                )
                ways = {"sdk": directly(service.url), "adapter": through_host(setting, target)}
                other = Binding(setting, target)
                await other.create()
                await other.say(burst(1))
                made = await measured(ways, burst, turns, events)
                await other.cleanup()
                alone = [(await ways["adapter"](burst(1)))[1] * 1000 for _ in range(turns)]
            memory = ProcessTree(host.pid).memory_mib()
            await target.close()
        finally:
            await host.stop()
    return {**compared(made["sdk"], made["adapter"], memory), "alone_turn_ms": statistics.median(alone)}


def run(arguments: Sequence[str]) -> int:
    """The command line."""
    return main("python -m bench.agentcore", __doc__, bench, arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
