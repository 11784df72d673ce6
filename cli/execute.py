"""Running one command's work against a mesh: connection, event loop, Ctrl-C, a reader that went away."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from cli.connection import connection_from
from cli.errors import CommandError, ExitCode
from cli.output import Output

if TYPE_CHECKING:
    from cli.api import Api

Work = Callable[["Api", Output], Awaitable[int]]


def execute(work: Work, *, as_json: bool, on_interrupt: Callable[[], CommandError] | None = None) -> None:
    """Runs `work` and exits with its code. `on_interrupt` says what Ctrl-C left behind."""
    output = Output(as_json=as_json)
    connection = connection_from(os.environ)

    import asyncio

    async def whole() -> int:
        from cli.api import Api, Broken, unreachable

        async with Api(connection) as api:
            try:
                return await work(api, output)
            except Broken as broken:
                raise unreachable(connection.url, broken.reason) from None

    finish(lambda: asyncio.run(whole()), on_interrupt)


def finish(run: Callable[[], int], on_interrupt: Callable[[], CommandError] | None = None) -> None:
    """Runs it to its end, and exits with its code unless that is 0."""
    try:
        code = run()
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        raise on_interrupt() from None
    except BrokenPipeError:
        abandon_stdout()
        code = ExitCode.BROKEN_PIPE
    if code:
        raise typer.Exit(int(code))


def abandon_stdout() -> None:
    """Nobody reads any more; the interpreter would complain about what is still buffered."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
