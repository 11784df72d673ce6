"""`harness sandboxes`: which sandboxes the mesh on this machine has, and why others ended or never came up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.commands.arguments import Json, Limit
from cli.errors import CommandError, ExitCode
from cli.execute import finish
from cli.output import Output

app = typer.Typer(help="Show the sandboxes of the mesh on this machine.", no_args_is_help=True)

_COLUMNS = ("BINDING", "GENERATION", "HARNESS", "PROFILE", "ISOLATION", "STATE")
_KEYS = ("binding_id", "runtime_generation", "harness_id", "profile_id", "isolation", "state")


@app.command("list")
def list_sandboxes(
    ended: Annotated[
        bool, typer.Option("--ended", help="Those that ended or never came up, the last first, each with its reason.")
    ] = False,
    limit: Limit = 20,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="The mesh's data folder. Default: HARNESS_DATA_DIR, or .harness."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List sandboxes, and what strict isolation lacks on this machine. `harness runs show` says which binding a run is of."""
    import asyncio

    finish(lambda: asyncio.run(_list(data_dir, Output(as_json=as_json), ended=ended, limit=limit)))


async def _list(data_dir: Path | None, output: Output, *, ended: bool, limit: int) -> int:
    from cli.mesh.layout import default_data_dir, layout_of
    from cli.mesh.sandboxes import sandboxes_of

    folder = data_dir or default_data_dir()
    found = await sandboxes_of(layout_of(folder), ended=ended, limit=limit)
    if found is None:
        raise CommandError(
            f"No mesh runs on the data folder {folder}.",
            ExitCode.UNREACHABLE,
            "no_mesh",
            "Start one with `harness up`, or name its folder with --data-dir.",
        )
    if output.as_json:
        output.document(asdict(found))
        return 0
    columns, keys = (("ENDED", "REASON"), ("ended_at", "reason")) if ended else (("ENDS",), ("ends_at",))
    rows = [[item[key] for key in (*_KEYS, *keys)] for item in found.sandboxes]
    nothing = "No sandbox ended in the last seven days." if ended else "No sandbox is there; see also --ended."
    output.table((*_COLUMNS, *columns), rows, nothing)
    if found.more:
        output.note(f"There are more than {limit}: give a larger --limit.")
    if found.missing:
        output.note(f"Strict isolation is not to be had on this machine: {'; '.join(found.missing)}.", "yellow")
    return 0
