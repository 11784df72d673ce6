"""The toy service as a process of its own, for tests of start and stop."""

import os
import threading

from services.common.capability_token import CapabilityVerifier
from services.common.server import Facade, Service, ServiceContext, run_service
from services.common.settings import ServiceSettings, load_settings
from tests.common.toy import CANARY, SERVICE, ToyServicer, registration


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

    async def away() -> None:
        await context.set_serving(False)

    if os.environ.get("TOY_AWAY"):
        context.tasks.every("away", 0.01, away)
    if os.environ.get("TOY_THREAD"):
        threading.Thread(target=threading.Event().wait).start()
    facade = None
    if key := os.environ.get("TOY_FACADE_KEY"):
        listen = f"unix:{context.settings.data_dir}/facade/toy.sock"
        facade = Facade(listen, CapabilityVerifier([key], SERVICE), [registration(servicer)])
    context.resources.callback(note, "closed")
    return Service([registration(servicer)], facade, on_start=[start], on_stop=[failing_stop, stop])


if __name__ == "__main__":
    run_service("toy", load_settings(ServiceSettings), build)
