"""Which measurements make up a bench, and how big each is."""

from dataclasses import dataclass
from typing import Any

from bench.load.client import Client, Target
from bench.load.fanout import measure_fanout
from bench.load.long_runs import measure_big, measure_replay, measure_stuck
from bench.load.sampling import ProcessTree
from bench.load.starts import measure_posts, measure_runs

MODES = ("post", "runs", "big", "replay", "fanout", "stuck", "history")
DEFAULT_MODES = ("post", "runs", "big", "replay", "fanout")
LANES = 32
HISTORY_PARTS = 4

Results = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. `history` runs are made in four equal parts, to see what grows with the past."""

    repeat: int = 3
    posts_alone: int = 300
    posts: int = 1500
    runs_alone: int = 200
    runs: int = 960
    big: int = 20_000
    subscribers: tuple[int, ...] = (100, 500)
    rate: int = 100
    fanout_seconds: int = 10
    fanout_processes: int = 1
    cores: float = 1.0
    """Of each process of a service, at least: subscribers arrive as fast as that lets them."""
    stuck_subscribers: int = 10
    stuck_events: int = 200_000
    history: int = 10_000


QUICK = Sizes(
    repeat=1,
    posts_alone=20,
    posts=64,
    runs_alone=20,
    runs=64,
    big=2_000,
    subscribers=(20,),
    rate=50,
    fanout_seconds=2,
    stuck_subscribers=3,
    stuck_events=5_000,
    history=200,
)


async def warm_up(target: Target, runs: int) -> None:
    """Saves the agent and lets every process have done everything once."""
    async with Client(target) as client:
        await client.save_agent()
        await measure_runs(client, ProcessTree(target.pid), min(4, runs), runs)


async def measure(target: Target, mode: str, sizes: Sizes) -> list[Any]:
    """One mode at one server: every figure of it, in the order measured."""
    tree = ProcessTree(target.pid, target.processes)
    results: list[Any] = []
    async with Client(target) as client:
        if mode == "fanout":
            for subscribers in sizes.subscribers:
                results.append(
                    await measure_fanout(
                        client,
                        target,
                        tree,
                        subscribers=subscribers,
                        rate=sizes.rate,
                        seconds=sizes.fanout_seconds,
                        processes=sizes.fanout_processes,
                        cores=sizes.cores,
                    )
                )
        elif mode == "stuck":
            results.append(await measure_stuck(client, target, tree, sizes.stuck_subscribers, sizes.stuck_events))
        elif mode == "history":
            for _ in range(HISTORY_PARTS):
                part = await measure_runs(client, tree, LANES, max(1, sizes.history // HISTORY_PARTS))
                results.append({"runs": part, "memory_mib": tree.memory_mib()})
        elif mode == "replay":
            run_id = (await measure_big(client, tree, sizes.big, yields=False)).run_id
            results += [await measure_replay(client, tree, run_id) for _ in range(sizes.repeat)]
        elif mode == "big":
            for yields in (False, True):
                results += [await measure_big(client, tree, sizes.big, yields=yields) for _ in range(sizes.repeat)]
        elif mode in ("post", "runs"):
            work = measure_posts if mode == "post" else measure_runs
            alone, many = (sizes.posts_alone, sizes.posts) if mode == "post" else (sizes.runs_alone, sizes.runs)
            for lanes, total in ((1, min(alone, many)), (LANES, many)):
                results += [await work(client, tree, lanes, total) for _ in range(sizes.repeat)]
        else:
            raise ValueError(f"unknown mode {mode}")
    return results
