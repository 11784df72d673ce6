"""The reference harness, which notes every turn that is begun: `python -m tests.runs.counting_host --listen ADDRESS`.

One line for each in the file `TURNS_FILE`: the run, the process, and for how many seconds the runtime was told to go on alone.
"""

import os
from collections.abc import AsyncIterator

from adapters.reference.adapter import ReferenceAdapter, ReferenceRuntime
from adapters.sdk.contract import HarnessRuntime, RuntimeConstruction, Turn
from adapters.sdk.serve import run_adapter_main
from harness.event.v1 import event_pb2


class CountingAdapter(ReferenceAdapter):
    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        return CountingRuntime(construction)


class CountingRuntime(ReferenceRuntime):
    def __init__(self, construction: RuntimeConstruction) -> None:
        super().__init__(construction)
        self._grace = construction.context.limits.detach_grace_seconds

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        with open(os.environ["TURNS_FILE"], "a", encoding="ascii") as file:
            file.write(f"{turn.run_id} {os.getpid()} {self._grace}\n")
        return super().stream(turn)


if __name__ == "__main__":
    run_adapter_main(CountingAdapter, "tests.runs.counting_host")
