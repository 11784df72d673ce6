"""How a tool's stable id becomes a name that every provider takes: at most 64 characters of `[A-Za-z0-9_-]`, and back again.

An id that is safe is its own name. Any other is a readable stem and a digest of the whole id. Names of the second form end in a
mark that no name of the first form has: a safe id that happens to end like that is given a digest as well. So two ids
share a name only if their digests collide, and that is refused when the names are made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

MAX_NAME: Final = 64
DIGEST_CHARACTERS: Final = 16
_MARK: Final = "__"
_STEM: Final = MAX_NAME - DIGEST_CHARACTERS - len(_MARK)
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAPPED: Final = re.compile(rf".*{_MARK}[0-9a-f]{{{DIGEST_CHARACTERS}}}", re.DOTALL)


class NamesCollide(ValueError):
    """Two ids would have one name."""

    def __init__(self, first: str, second: str, name: str) -> None:
        super().__init__(f"the tools {first!r} and {second!r} would both be named {name!r}")
        self.first = first
        self.second = second


def provider_name(tool_id: str) -> str:
    """The name of one tool: always the same for the same id, on every replica."""
    if _SAFE.fullmatch(tool_id) and not _MAPPED.fullmatch(tool_id):
        return tool_id
    stem = _UNSAFE.sub("_", tool_id)[:_STEM]
    digest = hashlib.blake2b(tool_id.encode(), digest_size=DIGEST_CHARACTERS // 2, person=b"tool-name").hexdigest()
    return f"{stem}{_MARK}{digest}"


def names_of(tool_ids: Iterable[str]) -> Mapping[str, str]:
    """The names of different ids, by id. Errors: `NamesCollide`."""
    names: dict[str, str] = {}
    ids_by_name: dict[str, str] = {}
    for tool_id in tool_ids:
        name = provider_name(tool_id)
        other = ids_by_name.setdefault(name, tool_id)
        if other != tool_id:
            raise NamesCollide(other, tool_id, name)
        names[tool_id] = name
    return names
