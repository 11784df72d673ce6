"""What can go wrong for the person at the command line, and the exit code each says it with (reference: command line)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `harness`."""

    OK = 0
    FAILED = 1
    """The request was refused, or the run failed."""
    USAGE = 2
    """Wrong use, or wrong configuration."""
    UNREACHABLE = 3
    """The mesh cannot be reached, or is not able to answer."""
    NOT_FOUND = 4
    CONFLICT = 5
    CANCELLED = 6
    """The run was cancelled."""
    WAITING = 7
    """The run was interrupted and waits for a person."""
    PARTIAL = 8
    """Only some sections were certified; what was looked at is in order."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output is gone."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with one field of what a person wrote. `line` counts from 1; 0: not known."""

    path: str
    code: str
    message: str
    file: str = ""
    line: int = 0


def problem_of(detail: Mapping[str, object]) -> Problem:
    """A problem as the REST API shows it: `{path, code, message}`."""
    return Problem(str(detail.get("path", "")), str(detail.get("code", "")), str(detail.get("message", "")))


@dataclass(eq=False, slots=True)
class CommandError(Exception):
    """Ends a command: what was wrong and where (`message`, `problems`), and what to do (`hint`)."""

    message: str
    exit_code: ExitCode
    code: str
    hint: str = ""
    problems: Sequence[Problem] = ()
    facts: Mapping[str, str | int] = field(default_factory=dict[str, str | int])

    def __str__(self) -> str:
        return self.message


def usage_error(message: str, hint: str = "") -> CommandError:
    """Something on the command line or in the environment is wrong."""
    return CommandError(message, ExitCode.USAGE, "usage", hint)
