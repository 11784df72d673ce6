"""`python -m bench.claude`: what the Claude adapter adds to its SDK, a turn and an event, against the same stand-in of the model, in one run.

The SDK alone: start the program, ask, read to the result. The figures are those of `bench.overhead`.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, StreamEvent

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from bench.load.sampling import ProcessTree
from bench.overhead import Play, compared, main, measured, through_host
from conformance.plane.binding import Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.target import Target
from harness.common.v1 import placement_pb2
from tests.adapters.processes import AdapterProcess
from tests.standins.messages import marked, serving_in_thread

MODEL = "claude-standin-1"
DELTA = 16


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


def burst(count: int) -> str:
    """A message that the stand-in answers with so many deltas."""
    return marked([{"burst": [count, DELTA]}])


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
                made = await measured(ways, burst, turns, events)
            memory = ProcessTree(host.pid).memory_mib()
            await target.close()
        finally:
            await host.stop()
    return compared(made["sdk"], made["adapter"], memory)


def run(arguments: Sequence[str]) -> int:
    """The command line."""
    return main("python -m bench.claude", __doc__, bench, arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
