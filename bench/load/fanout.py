"""One run at a steady rate, followed by many at once. The subscribers are processes of their own, so that their work is not the server's."""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.load.client import Client, Target
from bench.load.sampling import ProcessTree, Summary, summary_of

OPEN_SECONDS = 2.0
OPENED_PER_SECOND = 200
"""How fast subscribers arrive at worst: the run's first event waits for them."""


@dataclass(frozen=True, slots=True)
class Fanout:
    """What all subscribers together saw. `seconds`: from the first event on."""

    subscribers: int
    rate: int
    seconds: float
    expected: int
    delivered: int
    delivered_per_second: float
    latency: Summary
    cpu_seconds: float
    cpu_us_per_event: float
    client_cpu_seconds: float
    completed: int
    sequence_errors: int
    memory_mib: float


async def measure_fanout(
    client: Client,
    target: Target,
    tree: ProcessTree,
    *,
    subscribers: int,
    rate: int,
    seconds: int,
    processes: int,
    cores: float = 1.0,
) -> Fanout:
    """`subscribers`, spread over `processes`, follow one run of `rate` events a second for `seconds`. `cores` is what a gateway has for them at least."""
    delay = OPEN_SECONDS + subscribers / (OPENED_PER_SECOND * min(1.0, cores))
    events = rate * seconds
    cpu = tree.cpu_seconds()
    run_id = await client.start(n=events, rate=rate, delay=delay)
    began = time.perf_counter()
    shares = [subscribers // processes + (index < subscribers % processes) for index in range(processes)]
    results = await asyncio.gather(*(_subscribers(target, run_id, share) for share in shares if share))
    wall = time.perf_counter() - began - delay
    used = tree.cpu_seconds() - cpu
    delivered = sum(result["events"] for result in results)
    return Fanout(
        subscribers=subscribers,
        rate=rate,
        seconds=round(wall, 2),
        expected=subscribers * events,
        delivered=delivered,
        delivered_per_second=round(delivered / wall),
        latency=summary_of([latency for result in results for latency in result["latencies"]]),
        cpu_seconds=round(used, 2),
        cpu_us_per_event=round(used * 1e6 / delivered, 1),
        client_cpu_seconds=round(sum(result["cpu_seconds"] for result in results), 2),
        completed=sum(result["completed"] for result in results),
        sequence_errors=sum(result["sequence_errors"] for result in results),
        memory_mib=tree.memory_mib(),
    )


async def _subscribers(target: Target, run_id: str, count: int) -> dict[str, Any]:
    """A process with `count` subscribers; what it saw."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load.fanout", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    # Not on the command line, where everybody on the machine could read the token.
    order = json.dumps({"target": asdict(target), "run_id": run_id, "count": count})
    output, _ = await process.communicate(order.encode())
    if process.returncode:
        raise RuntimeError(f"a process of {count} subscribers ended with exit code {process.returncode}")
    return dict(json.loads(output))


async def _follow(order: dict[str, Any]) -> dict[str, Any]:
    async with Client(Target(**order["target"])) as client:
        readings = await asyncio.gather(*(client.read(order["run_id"], stamps=True) for _ in range(order["count"])))
    return {
        "events": sum(reading.events for reading in readings),
        "latencies": [round(latency, 6) for reading in readings for latency in reading.latencies],
        "completed": sum(reading.terminal == "completed" for reading in readings),
        "sequence_errors": sum(reading.sequence_errors for reading in readings),
        "cpu_seconds": time.process_time(),
    }


if __name__ == "__main__":
    json.dump(asyncio.run(_follow(json.load(sys.stdin))), sys.stdout)
