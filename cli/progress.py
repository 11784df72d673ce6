"""How far something long has come: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from cli.output import Output
from cli.text import safe_line

SHOWN_FROM_BYTES: Final = 262_144
"""What is smaller is there before anybody could read a bar."""


@contextmanager
def progress(output: Output, what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """Gives a function that is told how many bytes are done, of `total` if that is known."""
    small = total is not None and total < SHOWN_FROM_BYTES
    if output.as_json or small or not output.notes.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    # A name is shown as it is: no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=output.notes, transient=True) as bar:
        task = bar.add_task(safe_line(what, 60), total=total)
        yield lambda done: bar.update(task, completed=done)
