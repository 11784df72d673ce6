"""Sending a file of this machine to the mesh: checked here, read piece by piece, sent again where the connection broke."""

from __future__ import annotations

import mimetypes
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.api import Api, Broken, unreachable
from cli.errors import CommandError, ExitCode, usage_error
from cli.output import Output
from cli.progress import progress

STDIN: Final = "-"
MAX_FILE_BYTES: Final = 67_108_864
"""No mesh takes more, whatever its settings."""
MAX_NAME_CHARACTERS: Final = 1024
PIECE_BYTES: Final = 65_536
ATTEMPTS: Final = 3
_MEDIA_TYPES: Final = {
    ".csv": "text/csv", ".gif": "image/gif", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".json": "application/json", ".log": "text/plain",
    ".markdown": "text/markdown", ".md": "text/markdown", ".pdf": "application/pdf", ".png": "image/png", ".txt": "text/plain",
    ".webp": "image/webp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to send. `size` None: it is standard input."""

    path: str
    name: str
    media_type: str
    size: int | None


def local_file(path: str, name: str | None = None, media_type: str | None = None) -> LocalFile:
    """The file at a path, `-` for standard input. Raises CommandError (exit 2) for what can be no upload."""
    name = (name if name is not None else "" if path == STDIN else os.path.basename(path))[:MAX_NAME_CHARACTERS]
    size = None if path == STDIN else _size(path)
    kind = media_type or _media_type(name)
    if not kind:
        shown = "standard input" if path == STDIN else path
        raise usage_error(
            f"What {shown} is cannot be told from its name.", "Give its media type as --type, as in --type text/plain."
        )
    return LocalFile(path, name, kind, size)


async def upload(api: Api, output: Output, file: LocalFile, request_id: str) -> dict[str, Any]:
    """The file as the mesh keeps it. The request id makes a repeated upload the same file."""
    parameters = {"name": file.name, "client_request_id": request_id}
    attempts = 1 if file.size is None else ATTEMPTS
    with progress(output, f"uploading {file.name or 'standard input'}", file.size) as advance:
        for attempt in range(1, attempts + 1):
            try:
                return await api.upload(
                    "/api/v1/files", parameters, file.media_type, _content(file, advance), file.size
                )
            except Broken as broken:
                if attempt == attempts or broken.unconnected:
                    raise unreachable(api.connection.url, broken.reason) from None
                advance(0)
    raise AssertionError("the last attempt returns or raises")


async def _content(file: LocalFile, advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    """What is sent; `advance` is told how much of it has been."""
    for sent, piece in _of_stdin() if file.size is None else _of_file(file.path, file.size):
        yield piece
        advance(sent)


def _of_stdin() -> Iterator[tuple[int, bytes]]:
    sent = 0
    while piece := sys.stdin.buffer.read(PIECE_BYTES):
        sent += len(piece)
        if sent > MAX_FILE_BYTES:
            raise _unreadable("Standard input", f"no mesh takes more than {MAX_FILE_BYTES:,} bytes")
        yield sent, piece


def _of_file(path: str, size: int) -> Iterator[tuple[int, bytes]]:
    """The announced bytes, and how many there were by then. Errors: CommandError for a file that has fewer or more by now."""
    sent = 0
    try:
        with Path(path).open("rb") as opened:
            while sent < size and (piece := opened.read(min(PIECE_BYTES, size - sent))):
                sent += len(piece)
                yield sent, piece
            changed = sent < size or bool(opened.read(1))
    except OSError as error:
        raise _unreadable(path, error.strerror or "cannot be read") from None
    if changed:
        raise _unreadable(path, "it changed while it was sent")


def _size(path: str) -> int:
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, (error.strerror if isinstance(error, OSError) else None) or "not a path") from None
    if stat.S_ISDIR(status.st_mode):
        raise usage_error(f"{path} is a folder.", "Name the files in it.")
    if not stat.S_ISREG(status.st_mode):
        raise usage_error(
            f"{path} is no regular file.", "Send its content as standard input: `harness files upload -`."
        )
    if not status.st_size:
        raise usage_error(f"{path} is empty.", "Send a file with content.")
    if status.st_size > MAX_FILE_BYTES:
        raise usage_error(
            f"{path} has {status.st_size:,} bytes; no mesh takes more than {MAX_FILE_BYTES:,}.",
            "Send a smaller file, or its content as several.",
        )
    return status.st_size


def _unreadable(path: str, reason: str) -> CommandError:
    return CommandError(
        f"{path} cannot be sent: {reason}.", ExitCode.USAGE, "unreadable_file", "Check the path and the file."
    )


def _media_type(name: str) -> str:
    known = _MEDIA_TYPES.get(Path(name).suffix.lower())
    return known or mimetypes.guess_type(name, strict=True)[0] or ""
