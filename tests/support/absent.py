"""Packages that a process is not to find, as if they were not installed."""

import sys
from importlib import metadata
from typing import Any


def hide(*packages: str) -> None:
    """Neither the list of what is installed nor an import knows them any more; to be called before anything is imported that imports them."""
    found = metadata.Distribution.from_name

    def from_name(name: str) -> metadata.Distribution:
        if name in packages:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    hidden: Any = from_name
    metadata.Distribution.from_name = hidden
    for package in packages:
        # How Python itself marks what is not to be imported.
        sys.modules[package.replace("-", "_")] = None  # pyright: ignore[reportArgumentType] - so it is documented
