"""`harness files`: upload, list, show, download and delete the files that agents read."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import FileId, Json, Limit, RequestId
from cli.errors import usage_error
from cli.execute import execute

if TYPE_CHECKING:
    from cli.api import Api
    from cli.output import Output

app = typer.Typer(help="Upload, list, show, download and delete files for agents to read.", no_args_is_help=True)

_COLUMNS = ("FILE", "NAME", "TYPE", "BYTES", "CREATED", "KEPT UNTIL")
_KEYS = ("file_id", "name", "media_type", "size", "created_at", "expires_at")


@app.command("upload")
def upload(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="What to upload; - is standard input.")],
    name: Annotated[str | None, typer.Option("--name", help="Its name, if it is to have another.")] = None,
    media_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Its media type, if its name does not say it.")
    ] = None,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Upload files. Each is kept for a time, longer where a run names it."""
    from cli.upload import local_file
    from cli.upload import upload as send

    if len(paths) > 1 and (name is not None or request_id is not None):
        raise usage_error("--name and --request-id are for one file.", "Upload the files one by one.")
    files = [local_file(path, name, media_type) for path in paths]

    async def work(api: Api, output: Output) -> int:
        uploaded: list[Any] = []
        for file in files:
            known = await send(api, output, file, request_id or f"cli-{secrets.token_hex(16)}")
            uploaded.append(known)
            if not output.as_json:
                output.say(f"{known['file_id']}  {known['name']}  {known['media_type']}, {known['size']:,} bytes")
        if output.as_json:
            output.document({"files": uploaded})
        else:
            output.note(f"Give one to an agent with `harness run AGENT MESSAGE --file-id {uploaded[0]['file_id']}`.")
        return 0

    execute(work, as_json=as_json)


@app.command("list")
def list_files(limit: Limit = 20, as_json: Json = False) -> None:
    """List your files, newest first."""

    async def work(api: Api, output: Output) -> int:
        files, more = await api.items("/api/v1/files", "files", limit)
        if output.as_json:
            output.document({"files": files, "more": more})
            return 0
        rows = [[item[key] for key in _KEYS] for item in files]
        output.table(_COLUMNS, rows, "No files yet: upload one with `harness files upload PATH`.")
        if more:
            output.note(f"There are more than {limit}: give a larger --limit.")
        return 0

    execute(work, as_json=as_json)


@app.command("show")
def show(file_id: FileId, as_json: Json = False) -> None:
    """Show what is known of a file."""

    async def work(api: Api, output: Output) -> int:
        data = await api.get(f"/api/v1/files/{file_id}")
        if output.as_json:
            output.document(data)
        else:
            output.fields(data)
        return 0

    execute(work, as_json=as_json)


@app.command("download")
def download(
    file_id: FileId,
    target: Annotated[
        str | None,
        typer.Option("--output", metavar="PATH", help="A file or folder to write it to; - is standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Download a file, into this folder and under its own name unless told otherwise. Half a download leaves nothing."""
    from cli.download import STDOUT
    from cli.download import download as fetch

    if as_json and target == STDOUT:
        raise usage_error("--json and the content cannot both go to standard output.", "Leave one of them out.")

    async def work(api: Api, output: Output) -> int:
        file = await fetch(api, output, file_id, target, replace=force)
        if output.as_json:
            output.document(file)
        elif target != STDOUT:
            output.say(f"{file['path']}: {file['size']:,} bytes")
        return 0

    execute(work, as_json=as_json)


@app.command("delete")
def delete(file_id: FileId, as_json: Json = False) -> None:
    """Delete a file with its content. A run that names it cannot read it any more."""

    async def work(api: Api, output: Output) -> int:
        data = await api.delete(f"/api/v1/files/{file_id}")
        if output.as_json:
            output.document(data)
        else:
            output.say(f"{file_id}: deleted")
        return 0

    execute(work, as_json=as_json)
