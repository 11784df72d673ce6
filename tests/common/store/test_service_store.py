"""A service whose store is away for a moment while it starts, starts all the same (I34)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.common.settings import ServiceSettings
from services.common.store import Collection, StoreUnavailable, open_record_store, service_store


async def opened(monkeypatch: pytest.MonkeyPatch, folder: Path, refusals: int) -> int:
    """Opens a real store whose first connections are broken off; how often that was tried."""
    tried = 0

    async def breaking(*given: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried <= refusals:
            raise StoreUnavailable("the connection was closed")
        return await open_record_store(*given)

    monkeypatch.setattr(service_store, "open_record_store", breaking)
    monkeypatch.setattr(service_store, "PAUSE_SECONDS", 0.001)
    for name, value in {
        "LISTEN": "unix:/x",
        "DATA_DIR": str(folder),
        "SERVICE_TOKENS": "t" * 32,
        "IDENTITY_KEY": "k" * 48,
    }.items():
        monkeypatch.setenv(f"HARNESS_{name}", value)
    store = await service_store.open_service_store("toy", ServiceSettings.from_environment(), [Collection("things")])
    await store.check()
    await store.close()
    return tried


async def test_i34_a_store_that_is_away_for_a_moment_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert await opened(monkeypatch, tmp_path, refusals=2) == 3


async def test_i35_opening_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await opened(monkeypatch, tmp_path, refusals=service_store.ATTEMPTS)
