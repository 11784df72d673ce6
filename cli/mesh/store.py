"""Where a mesh on this machine keeps its records, when that is not in its data folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from services.common.errors import ConfigurationError

_VARIABLE = "HARNESS_STORE_URL"


def database_url(option: str | None, environment: Mapping[str, str] | None = None) -> str:
    """The database of all services: the option, else the variable or its file; empty: each has a SQLite file of its own.

    Errors: `ConfigurationError` without any part of the address, which may hold a password.
    """
    environment = os.environ if environment is None else environment
    name, url = "--store-url", option or ""
    if not url:
        name, url = _VARIABLE, environment.get(_VARIABLE, "")
        path = environment.get(f"{_VARIABLE}_FILE", "")
        if path:
            if url:
                raise ConfigurationError(f"{_VARIABLE} and {_VARIABLE}_FILE are both set: keep one of them.")
            name, url = f"{_VARIABLE}_FILE", _content(path)
    if url and not url.startswith(("mongodb://", "mongodb+srv://")):
        raise ConfigurationError(
            f"{name}: a mesh takes mongodb://host/database here; without it each service keeps a SQLite file in the data folder."
        )
    return url


def _content(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{_VARIABLE}_FILE: cannot read {path}: {error}.") from None
