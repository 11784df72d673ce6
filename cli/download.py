"""Keeping a file of the mesh on this machine: under a name that is safe here, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

from cli.api import Api, Broken, segment, unreachable
from cli.errors import CommandError, ExitCode, usage_error
from cli.output import Output
from cli.progress import progress

STDOUT: Final = "-"
MAX_NAME_BYTES: Final = 200
ATTEMPTS: Final = 3
_REPLACED: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))


async def download(api: Api, output: Output, file_id: str, target: str | None, *, replace: bool) -> dict[str, Any]:
    """Writes the content, to a file or with `-` to standard output. What is known of the file, and `path`: where it is now."""
    path = f"/api/v1/files/{segment(file_id)}"
    file = await api.get(path)
    if target == STDOUT:
        await _once(api, output, path, file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return {**file, "path": STDOUT}
    place = _place(target, local_name(file["name"], file_id))
    if not replace and place.exists():
        raise usage_error(f"{place} is there already.", "Give another --output, or --force to replace it.")
    await _to(place, api, output, path, file)
    return {**file, "path": str(place)}


def local_name(name: str, file_id: str) -> str:
    """A file's name as it may be used here: no path, nothing hidden, no option, nothing that steers a terminal, not too long."""
    kept = "".join(
        "_" if character in "/\\:" or unicodedata.category(character) in _REPLACED else character for character in name
    ).strip()
    kept = kept.lstrip(".-~ ")
    stem, dot, suffix = kept.rpartition(".")
    suffix = f"{dot}{suffix}" if stem and len(suffix.encode()) < 16 else ""
    room = MAX_NAME_BYTES - len(suffix.encode())
    stem = kept[: len(kept) - len(suffix)].encode()[:room].decode(errors="ignore")
    return f"{stem}{suffix}".rstrip(". ") or file_id


def _place(target: str | None, name: str) -> Path:
    if target is None:
        return Path(name)
    place = Path(target)
    return place / name if place.is_dir() else place


async def _to(place: Path, api: Api, output: Output, path: str, file: dict[str, Any]) -> None:
    """Half a download is never under the file's name."""
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with part.open("wb") as opened:
                    await _once(api, output, path, file, opened)
            except Broken as broken:
                if attempt == ATTEMPTS or broken.unconnected:
                    raise unreachable(api.connection.url, broken.reason) from None
                continue
            os.replace(part, place)
            return
    except OSError as error:
        raise usage_error(f"{place} cannot be written: {error.strerror}.", "Give another --output.") from None
    finally:
        if part.exists():
            part.unlink()


async def _once(api: Api, output: Output, path: str, file: dict[str, Any], into: BinaryIO) -> None:
    digest, done = hashlib.sha256(), 0
    with progress(output, f"downloading {file['name']}", file["size"]) as advance:
        async with api.content(f"{path}/content") as pieces:
            async for piece in pieces:
                done += len(piece)
                if done > file["size"]:
                    break
                digest.update(piece)
                _write(into, piece, advance, done)
    if digest.hexdigest() != file["sha256"] or done != file["size"]:
        raise CommandError(
            "What came is not the file: its checksum differs.",
            ExitCode.FAILED,
            "wrong_content",
            "Try again; if it stays so, look at what stands between here and the gateway.",
        )


def _write(into: BinaryIO, piece: bytes, advance: Callable[[int], None], done: int) -> None:
    into.write(piece)
    advance(done)
