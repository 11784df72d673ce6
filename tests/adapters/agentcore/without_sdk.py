"""The adapter in a process that has no boto3: `python -m tests.adapters.agentcore.without_sdk --listen ADDRESS`."""

import sys
from importlib import metadata
from typing import Any

ABSENT = ("boto3", "botocore")


def _hide() -> None:
    """Neither imports nor the list of what is installed know it any more."""
    found = metadata.Distribution.from_name

    def from_name(name: str) -> metadata.Distribution:
        if name in ABSENT:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    hidden: Any = from_name
    metadata.Distribution.from_name = hidden
    for name in ABSENT:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] - how Python itself marks what is not to be imported


if __name__ == "__main__":
    _hide()
    from adapters.agentcore.adapter import AgentCoreAdapter
    from adapters.sdk.serve import run_adapter_main

    run_adapter_main(AgentCoreAdapter, "tests.adapters.agentcore.without_sdk")
