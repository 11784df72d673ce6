"""Opening the store a service is configured with, the same way in every service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.common.errors import ConfigurationError
from services.common.logs import get_logger
from services.common.settings import ServiceSettings
from services.common.store import (
    Collection,
    RecordStore,
    StoreOptions,
    StoreRefused,
    StoreUnavailable,
    open_record_store,
)

ATTEMPTS: Final = 5
"""Of opening a store that is away, or breaks a connection off, in that moment (I34, I35); what is done of it is not done twice."""
PAUSE_SECONDS: Final = 0.2
_log = get_logger(__name__)


async def open_service_store(service: str, settings: ServiceSettings, collections: Sequence[Collection]) -> RecordStore:
    """The store at HARNESS_STORE_URL; a SQLite file named after the service in its data folder if that is empty.

    Errors: `ConfigurationError` that names the setting (I32), `StoreUnavailable`, `StoreFull`.
    """
    given = settings.store_url
    url = f"sqlite://{settings.data_dir.absolute() / service}.sqlite3" if given is None else given.get_secret_value()
    options = StoreOptions(service, settings.store_pool_size, settings.store_timeout_seconds)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await open_record_store(url, collections, options)
        except StoreRefused as error:
            raise ConfigurationError(f"HARNESS_STORE_URL: {error}.") from None
        except StoreUnavailable as error:
            if attempt == ATTEMPTS:
                raise
            _log.warning("store_opened_again", attempt=attempt, error=str(error))
            await asyncio.sleep(PAUSE_SECONDS * 2**attempt)
    raise AssertionError("the last attempt answers or raises")
