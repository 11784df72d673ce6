"""What a command says: for people with colour on a terminal, or as JSON; results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError, Problem
from cli.text import json_line, safe_line, safe_text

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 100_000
"""Columns of something that is no terminal: nothing is wrapped or cut there."""

STYLES = {
    "available": "green", "unavailable": "red", "blocked": "red", "completed": "green", "failed": "red", "cancelled": "yellow",
    "interrupted": "magenta", "running": "cyan", "queued": "blue", "yes": "green", "no": "red", "native": "green", "emulated": "cyan",
    "unsupported": "yellow", "healthy": "green", "degraded": "yellow", "unhealthy": "red",
}  # fmt: skip


class Output:
    """stdout and stderr of one command. With `as_json` only `document` and `line` write to stdout, and `note` writes nothing."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console:
        return _console(stderr=False)

    @cached_property
    def notes(self) -> Console:
        return _console(stderr=True)

    def document(self, value: Any) -> None:
        """One JSON document, or one line of many."""
        sys.stdout.write(f"{json_line(value)}\n")
        sys.stdout.flush()

    def say(self, text: str, style: str = "") -> None:
        """One line of a result, for people."""
        _print(self.console, text, style)

    def note(self, text: str, style: str = "dim") -> None:
        """One line beside the result, for people."""
        if not self.as_json:
            _print(self.notes, text, style)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
        """A table, or what to do when it is empty."""
        if not rows:
            self.note(empty)
            return
        cells = [[safe_line(_cell(value)) for value in row] for row in rows]
        if not sys.stdout.isatty():
            self._plain_table([list(columns), *cells])
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
        self.console.print(table)

    def _plain_table(self, rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write(f"{line.rstrip()}\n")
        sys.stdout.flush()

    def fields(self, values: dict[str, Any]) -> None:
        """Names and values, one a line."""
        width = max(map(len, values), default=0)
        for name, value in values.items():
            text = safe_line(_cell(value))
            self.say(f"{name:<{width}}  {text}" if text else name, STYLES.get(text, ""))

    def error(self, error: CommandError) -> None:
        """What went wrong, on stderr."""
        if self.as_json:
            sys.stderr.write(f"{json_line(error_document(error))}\n")
            sys.stderr.flush()
            return
        _print(self.notes, f"error: {error.message}", "bold red")
        for problem in error.problems:
            # What the message ends with was said already, with its place.
            if not (problem.message and error.message.endswith(problem.message)):
                _print(self.notes, f"  {problem_line(problem)}", "")
        if error.hint:
            _print(self.notes, error.hint, "")


def error_document(error: CommandError) -> dict[str, Any]:
    """An error as `--json` shows it."""
    return {
        "error": error.message,
        "code": error.code,
        "exit_code": int(error.exit_code),
        "hint": error.hint,
        "details": [problem_document(problem) for problem in error.problems],
        **error.facts,
    }


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem as `--json` shows it."""
    document: dict[str, Any] = {"path": problem.path, "code": problem.code, "message": problem.message}
    return (
        document | ({"file": problem.file} if problem.file else {}) | ({"line": problem.line} if problem.line else {})
    )


def problem_line(problem: Problem) -> str:
    """`file:line: path: message`, as far as known."""
    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return safe_line(": ".join(part for part in (where, problem.path, problem.message) if part))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _print(console: Console, text: str, style: str) -> None:
    from rich.text import Text

    # A Text is taken as it is: no markup, no emoji codes.
    console.print(Text(safe_text(text), style), soft_wrap=True)
    console.file.flush()


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # NO_COLOR and TERM=dumb are honoured by rich.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else WIDE)
