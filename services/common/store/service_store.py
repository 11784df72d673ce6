"""Opening the store a service is configured with, the same way in every service."""

from __future__ import annotations

from collections.abc import Sequence

from services.common.errors import ConfigurationError
from services.common.settings import ServiceSettings
from services.common.store import Collection, RecordStore, StoreOptions, StoreRefused, open_record_store


async def open_service_store(service: str, settings: ServiceSettings, collections: Sequence[Collection]) -> RecordStore:
    """The store at HARNESS_STORE_URL; a SQLite file named after the service in its data folder if that is empty.

    Errors: `ConfigurationError` that names the setting (I32), `StoreUnavailable`, `StoreFull`.
    """
    given = settings.store_url
    url = f"sqlite://{settings.data_dir.absolute() / service}.sqlite3" if given is None else given.get_secret_value()
    options = StoreOptions(service, settings.store_pool_size, settings.store_timeout_seconds)
    try:
        return await open_record_store(url, collections, options)
    except StoreRefused as error:
        raise ConfigurationError(f"HARNESS_STORE_URL: {error}.") from None
