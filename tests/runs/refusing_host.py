"""The reference harness in a host that creates runtimes and then fails every StartRun: `python -m tests.runs.refusing_host --listen ADDRESS`."""

from typing import NoReturn

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.serve import run_adapter_main


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("this host starts nothing")


if __name__ == "__main__":
    RuntimeRegistry.start = _refuse  # pyright: ignore[reportAttributeAccessIssue] - refuses whatever it is called with
    run_adapter_main(ReferenceAdapter, "adapters.reference")
