"""The real catalog, killed by itself at one step of a save: `HARNESS_TEST_KILL=insert_version:before`."""

import os
import signal
from typing import Any

from services.catalog import __main__ as catalog
from services.catalog.settings import CatalogSettings
from services.catalog.store import CatalogStore
from services.common.server import run_service
from services.common.settings import load_settings

STEP, _, WHEN = os.environ["HARNESS_TEST_KILL"].partition(":")


class CrashingStore(CatalogStore):
    """A store whose process dies right before or right after one kind of write."""

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name != STEP:
            return attribute

        async def write(*args: Any) -> Any:
            if WHEN == "after":
                await attribute(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        return write


if __name__ == "__main__":
    catalog.CatalogStore = CrashingStore
    run_service("catalog", load_settings(CatalogSettings), catalog.build)
