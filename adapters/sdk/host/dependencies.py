"""Whether the packages a descriptor names are installed, in a version it names (contract, Health contract)."""

import re
from collections.abc import Iterable
from importlib import metadata

from harness.adapter.v1 import descriptor_pb2

_CLAUSE = re.compile(r"\s*(===|==|!=|>=|<=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def dependency_problem(dependencies: Iterable[descriptor_pb2.DependencyRequirement]) -> str:
    """The first package that is missing or of another version, as a sentence; empty: all are as they should be. Makes no network call."""
    for wanted in dependencies:
        try:
            installed = metadata.version(wanted.name)
        except (metadata.PackageNotFoundError, ValueError):
            return (
                f"The package {wanted.name} is not installed: install it, or the extra of the adapter that brings it."
            )
        if not fits(installed, wanted.version_range):
            return f"The package {wanted.name} is of version {installed}; the adapter needs {wanted.version_range}."
    return ""


def fits(version: str, version_range: str) -> bool:
    """Whether a version is in a range of numbered clauses (`>=1.2, <2`, `==1.4.*`, `~=1.4`). What has another form is not compared."""
    release = _RELEASE.match(version)
    if release is None:
        return True
    have = _numbers(release[0])
    for clause in version_range.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is not None and not _holds(have, match[1], _numbers(match[2]), prefix=bool(match[3])):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in text.split("."))


def _holds(have: tuple[int, ...], operator: str, wanted: tuple[int, ...], *, prefix: bool) -> bool:
    if operator == "~=":
        return _padded(have, wanted) >= wanted and have[: len(wanted) - 1] == wanted[:-1]
    if prefix:
        have = have[: len(wanted)]
    ours, theirs = _padded(have, wanted), _padded(wanted, have)
    return {
        "==": ours == theirs,
        "===": ours == theirs,
        "!=": ours != theirs,
        ">=": ours >= theirs,
        "<=": ours <= theirs,
        ">": ours > theirs,
        "<": ours < theirs,
    }[operator]


def _padded(numbers: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * (len(other) - len(numbers))
