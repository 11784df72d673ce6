"""The reference adapter, whose runtimes leave something behind: `python -m tests.conformance.leaving`, and the variable LEAVES says what."""

import os
import subprocess
import sys
from typing import Any

from adapters.reference.adapter import ReferenceAdapter, ReferenceRuntime
from adapters.sdk.serve import run_adapter_main

_left: list[Any] = []


def leave() -> None:
    if os.environ.get("LEAVES") == "processes":
        # It ends with this process, whose end of the pipe is the last.
        _left.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    if os.environ.get("LEAVES") == "descriptors":
        _left.append(os.open(os.devnull, os.O_RDONLY))


class LeavingRuntime(ReferenceRuntime):
    async def cleanup(self) -> None:
        leave()


class LeavingAdapter(ReferenceAdapter):
    async def create_runtime(self, construction: Any) -> Any:
        return LeavingRuntime(construction)


if __name__ == "__main__":
    run_adapter_main(LeavingAdapter, "tests.conformance.leaving")
