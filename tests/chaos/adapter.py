"""The reference harness with a journal: every start it is asked for is written down before anything of it happens, outside the mesh's stores.

`CHAOS_JOURNAL` names the file. A line outlives kill -9 of the process, so that a second start of a run cannot hide (I11).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from typing import Final

from adapters.reference.adapter import ReferenceAdapter, ReferenceRuntime
from adapters.sdk.contract import HarnessRuntime, RuntimeConstruction, Turn
from adapters.sdk.serve import run_adapter_main
from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_pb2

JOURNAL: Final = "CHAOS_JOURNAL"


class JournalingAdapter(ReferenceAdapter):
    """The reference harness, written down."""

    def __init__(self) -> None:
        super().__init__()
        self._file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime that writes down what it is asked to start."""
        return JournalingRuntime(construction, self._file)


class JournalingRuntime(ReferenceRuntime):
    """One binding's runtime."""

    __slots__ = ("_file",)

    def __init__(self, construction: RuntimeConstruction, file: int) -> None:
        super().__init__(construction)
        self._file = file

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        """A turn, written down first."""
        self._write_down(turn)
        return super().stream(turn)

    def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[event_pb2.EventDraft]:
        """A turn that answers an interrupt, written down first."""
        self._write_down(turn)
        return super().resume(turn, decision)

    def _write_down(self, turn: Turn) -> None:
        line = json.dumps({"run_id": turn.run_id, "pid": os.getpid(), "at": time.time()})
        os.write(self._file, f"{line}\n".encode())  # one write to a file opened for appending is one line


if __name__ == "__main__":
    run_adapter_main(JournalingAdapter, "tests.chaos.adapter")
