"""`python -m build_tools.component_lock EXTRA…`: the lines of requirements.lock that the project with these extras needs, hashes included.

Images are installed from it, so that each holds what its component needs and nothing is resolved while an image is built. It walks the
metadata of installed packages, so it runs where requirements-dev.lock is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = "harness-mesh"
_ENTRY: Final = re.compile(r"^([A-Za-z0-9._-]+)==")


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("component_lock: name at least one extra of pyproject.toml", file=sys.stderr)
        return 2
    try:
        sys.stdout.write(component_lock(arguments))
    except ValueError as error:
        print(f"component_lock: {error}", file=sys.stderr)
        return 1
    return 0


def component_lock(extras: Sequence[str]) -> str:
    """The part of the lock. Raises ValueError for an unknown extra or a package that is not locked or not installed."""
    entries = dict(_entries((ROOT / "requirements.lock").read_text("utf-8")))
    names = needed(extras)
    if missing := sorted(names - entries.keys()):
        raise ValueError(f"not in requirements.lock: {', '.join(missing)}; run `make lock`")
    return "".join(entries[name] for name in sorted(names))


def needed(extras: Sequence[str]) -> set[str]:
    """Names of all packages the project with these extras needs on this machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    if unknown := sorted(set(extras) - optional.keys()):
        raise ValueError(f"no such extra in pyproject.toml: {', '.join(unknown)}")
    open_ends = [Requirement(text) for text in project["dependencies"]]
    open_ends += [Requirement(text) for extra in extras for text in optional[extra]]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_ends:
        requirement = open_ends.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            open_ends += _requirements(requirement)
    return {name for name, _ in seen}


def _requirements(of: Requirement) -> Iterator[Requirement]:
    try:
        texts = distribution(of.name).requires or ()
    except PackageNotFoundError:
        raise ValueError(f"{of.name} is not installed; run `make setup`") from None
    for text in texts:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*of.extras, "")):
            yield requirement


def _entries(lock: str) -> Iterator[tuple[str, str]]:
    """Each package's own lines."""
    name, lines = "", list[str]()
    for line in lock.splitlines(keepends=True):
        if found := _ENTRY.match(line):
            if name:
                yield name, "".join(lines)
            name, lines = canonicalize_name(found[1]), []
        lines.append(line)
    if name:
        yield name, "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
