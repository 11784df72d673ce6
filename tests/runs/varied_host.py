"""An adapter whose next version can do other things than the one before: `VARIED='{"version": …}' python -m tests.runs.varied_host --listen ADDRESS`.

It serves as the harness `reference`. `VARIED` holds `version`, `strategy` (of the thread state) and `capabilities` (keys that are native). A message
`hold FILE` writes state and ends once the file is there. What a turn's files hold is said first.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from adapters.sdk import events
from adapters.sdk.capabilities import NATIVE, build_descriptor, capability
from adapters.sdk.contract import Turn
from adapters.sdk.serve import run_adapter_main
from adapters.sdk.simple import SimpleAdapter
from harness.adapter.v1 import descriptor_pb2

VARIABLE = "VARIED"


class VariedAdapter(SimpleAdapter):
    """What the environment says."""

    def __init__(self) -> None:
        says: dict[str, Any] = json.loads(os.environ[VARIABLE])
        strategy = descriptor_pb2.ThreadStateStrategy.Value(f"THREAD_STATE_STRATEGY_{says['strategy'].upper()}")
        self._descriptor = build_descriptor(
            harness_id="reference",
            display_name="Varied",
            adapter_version=says["version"],
            capabilities={key: capability(NATIVE) for key in says["capabilities"]},
            thread_state=strategy,
        )
        self._keeps_state = strategy == descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        return self._descriptor

    async def stream(self, turn: Turn) -> AsyncIterator[events.Draft]:
        word, _, name = turn.message.partition(" ")
        known = await turn.thread.load_head() if self._keeps_state and turn.thread_revision else None
        if word == "hold":
            await turn.thread.write_part(b"state", "varied.v1")
        for file in turn.files:
            content = await turn.files_access.read(file)
            yield events.text(f"{file.name} {file.media_type} {file.size}: {content.decode()}; ")
        yield events.text(f"revision {turn.thread_revision}, parts {len(known.parts) if known else 0}")
        while word == "hold" and not os.path.exists(name):  # noqa: ASYNC110, ASYNC240 - a file signals nothing
            await asyncio.sleep(0.02)
        yield events.completed()


if __name__ == "__main__":
    run_adapter_main(VariedAdapter, "tests.runs.varied_host")
