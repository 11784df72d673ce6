"""The toy service as a process of its own, for tests of start and stop."""

import os

from services.common.server import Service, ServiceContext, run_service
from services.common.settings import ServiceSettings, load_settings
from tests.common.toy import CANARY, ToyServicer, registration


async def build(context: ServiceContext[ServiceSettings]) -> Service:
    servicer = ToyServicer()
    journal = context.settings.data_dir / "journal"

    def note(line: str) -> None:
        with journal.open("a") as file:
            file.write(line + "\n")

    async def start() -> None:
        note("start")
        if os.environ.get("TOY_FAIL") == "start":
            raise RuntimeError(f"start {CANARY}")

    async def stop() -> None:
        note("stop")
        servicer.release.set()

    async def failing_stop() -> None:
        raise RuntimeError(f"stop {CANARY}")

    context.resources.callback(note, "closed")
    return Service([registration(servicer)], on_start=[start], on_stop=[failing_stop, stop])


if __name__ == "__main__":
    run_service("toy", load_settings(ServiceSettings), build)
