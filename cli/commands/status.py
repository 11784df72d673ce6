"""`harness status`: how the mesh on this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.arguments import Json
from cli.errors import CommandError, ExitCode
from cli.execute import finish
from cli.output import Output


def status(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="The mesh's data folder. Default: HARNESS_DATA_DIR, or .harness."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every process of the mesh on this machine. Exits 0: all healthy, 1: some are not, 3: no mesh runs there."""
    import asyncio

    finish(lambda: asyncio.run(_status(data_dir, Output(as_json=as_json))))


async def _status(data_dir: Path | None, output: Output) -> int:
    from cli.mesh.layout import default_data_dir, layout_of
    from cli.mesh.status import mesh_status

    folder = data_dir or default_data_dir()
    processes = await mesh_status(layout_of(folder))
    if processes is None:
        raise CommandError(
            f"No mesh runs on the data folder {folder}.",
            ExitCode.UNREACHABLE,
            "no_mesh",
            "Start one with `harness up`, or name its folder with --data-dir.",
        )
    healthy = all(process["healthy"] for process in processes)
    if output.as_json:
        output.document(processes)
    else:
        keys = ("name", "pid", "healthy", "version", "address")
        output.table(
            [key.upper() for key in keys], [[item[key] for key in keys] for item in processes], "No processes."
        )
    return 0 if healthy else int(ExitCode.FAILED)
