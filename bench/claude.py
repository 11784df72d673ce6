"""`python -m bench.claude`: what the Claude adapter adds to its SDK, a turn and an event, against the same stand-in of the model, in one run.

One way drives the SDK directly: start the program, ask, read to the result. The other is a turn through an adapter host over gRPC, from its start to its
terminal event. What follows a turn is not counted in either. They take turns, so that the machine is the same for both. Figures are medians; only
differences and ratios of one run mean anything, and on a busy machine not those.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, StreamEvent

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from bench.load.sampling import ProcessTree
from conformance.plane.binding import Binding, Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.run import kind
from conformance.plane.target import Target
from harness.common.v1 import placement_pb2
from tests.adapters.processes import AdapterProcess
from tests.standins.messages import marked, serving_in_thread

MODEL = "claude-standin-1"
DELTA = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of playing turns: medians in milliseconds."""

    turn_ms: float
    long_turn_ms: float
    events: int

    @property
    def event_ms(self) -> float:
        """What an event costs: what a long answer takes more than a short one."""
        return (self.long_turn_ms - self.turn_ms) / self.events


Play = Callable[[str], Awaitable[tuple[int, float]]]
"""Plays a turn: the deltas that came, and its seconds."""


def directly(url: str, folder: Path) -> Play:
    """Turns of the SDK alone."""
    options = ClaudeAgentOptions(
        tools=[],
        setting_sources=[],
        strict_mcp_config=True,
        verbatim_prompts=True,
        include_partial_messages=True,
        model=MODEL,
        cwd=folder,
        env={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "k",
            "HOME": str(folder),
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
            "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        },
    )

    async def play(message: str) -> tuple[int, float]:
        deltas, seconds, begun = 0, 0.0, time.perf_counter()
        async with ClaudeSDKClient(options) as client:
            await client.query(message)
            async for each in client.receive_response():
                if isinstance(each, StreamEvent) and each.event.get("type") == "content_block_delta":
                    deltas += 1
            seconds = time.perf_counter() - begun
        return deltas, seconds

    return play


def through_host(setting: Setting, target: Target) -> Play:
    """Turns of an adapter host, each the first of a conversation, as those of the SDK alone are."""

    async def play(message: str) -> tuple[int, float]:
        binding = Binding(setting, target)
        await binding.create()
        begun = time.perf_counter()
        drafts = await binding.say(message)
        seconds = time.perf_counter() - begun
        await binding.cleanup()
        if kind(drafts[-1]) != "run_completed":
            raise RuntimeError(f"a turn ended with {kind(drafts[-1])}")
        return sum(kind(draft) == "content_delta" for draft in drafts), seconds

    return play


async def measured(ways: dict[str, Play], turns: int, events: int) -> dict[str, Measured]:
    """Every way in turns: so many short answers, and as many of `events` deltas."""
    short, long = marked([{"burst": [1, DELTA]}]), marked([{"burst": [1 + events, DELTA]}])
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(turns + 1):
        for message, wanted in ((short, 1), (long, 1 + events)):
            for name, play in ways.items():
                came, seconds = await play(message)
                if came != wanted:
                    raise RuntimeError(f"{name}: {came} deltas came, not {wanted}")
                # The first round warms up.
                if number:
                    times.setdefault((name, message), []).append(seconds * 1000)
    return {
        name: Measured(statistics.median(times[name, short]), statistics.median(times[name, long]), events)
        for name in ways
    }


async def bench(turns: int, events: int) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="bc-") as name, serving_in_thread() as model:
        folder, canaries = Path(name), Canaries()
        (folder / "key").write_text("k\n")
        host = AdapterProcess(folder, module="adapters.claude_agent_sdk", environment={"ANTHROPIC_API_KEY_FILE": "-"})
        await host.start()
        try:
            target = Target(host.address, canaries)
            async with Facades(canaries, host.address) as facades:
                settings = {"credential_file": str(folder / "key"), "base_url": model.url, "model": MODEL}
                setting = Setting(
                    target,
                    facades,
                    ClaudeAdapter().descriptor,
                    Observations(),
                    False,
                    placement_pb2.PLACEMENT_IN_PROCESS,
                    settings,
                    {},
                )
                ways = {"sdk": directly(model.url, folder), "adapter": through_host(setting, target)}
                made = await measured(ways, turns, events)
            memory = ProcessTree(host.pid).memory_mib()
            await target.close()
        finally:
            await host.stop()
    sdk, adapter = made["sdk"], made["adapter"]
    return {
        "sdk_turn_ms": sdk.turn_ms,
        "adapter_turn_ms": adapter.turn_ms,
        "added_turn_ms": adapter.turn_ms - sdk.turn_ms,
        "sdk_event_ms": sdk.event_ms,
        "adapter_event_ms": adapter.event_ms,
        "added_event_ms": adapter.event_ms - sdk.event_ms,
        "host_mib": memory,
    }


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.claude", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of each kind and way (10)")
    parser.add_argument("--events", type=int, default=2000, help="deltas of a long answer (2000)")
    given = parser.parse_args(arguments)
    if given.turns < 1 or given.events < 1:
        parser.error("--turns and --events must be 1 or more")
    figures = asyncio.run(bench(given.turns, given.events))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
