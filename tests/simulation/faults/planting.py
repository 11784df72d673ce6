"""Replacing a piece of a module's source while it is loaded. Imports nothing of the product."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tests.simulation.faults import Edit, Fault


class Outdated(Exception):
    """A fault's piece of source is not there exactly once."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads the changed source, and neither reads nor writes compiled files."""

    def __init__(self, fullname: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(fullname, path)
        self._edits = edits

    def path_stats(self, path: Any) -> Any:
        raise OSError("no compiled file fits a changed source")

    def get_data(self, path: Any) -> bytes:
        data = super().get_data(path)
        return changed(data.decode(), self._edits).encode() if str(path).endswith(".py") else data


class _Planter:
    """Finds the modules that are to be changed."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits: dict[str, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(edit.module, []).append(edit)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        edits = self._edits.get(fullname)
        if edits is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise Outdated(f"there is no module {fullname}")
        loader = _Loader(fullname, spec.origin, edits)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


def changed(source: str, edits: Sequence[Edit]) -> str:
    """The source with every edit made. Errors: `Outdated`."""
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise Outdated(f"{edit.module} has this piece {count} times, not once:\n{edit.old}")
        source = source.replace(edit.old, edit.new)
    return source


def plant(fault: Fault) -> None:
    """From now on the modules of the fault are loaded changed. Errors: `Outdated` if one is loaded already."""
    for edit in fault.edits:
        if edit.module in sys.modules:
            raise Outdated(f"{edit.module} was loaded before the fault was planted")
    sys.meta_path.insert(0, _Planter(fault.edits))


def source_of(module: str) -> str:
    """The source of a module, which is not loaded for it. Errors: `Outdated`."""
    path: Sequence[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            raise Outdated(f"there is no module {module}")
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None:
        raise Outdated(f"there is no module {module}")
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()
