"""A turn's message and files as the content a model reads, within the harness's limits; what is left out is said (I35)."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.events import Draft
from harness.runtime.v1 import runtime_pb2

MAX_FILES: Final = 8
"""Of images, and of documents."""
MAX_IMAGE_BYTES: Final = 3_750_000
"""What the provider takes, before it is encoded."""
MAX_DOCUMENT_BYTES: Final = 4 << 20
MAX_TEXT_BYTES: Final = 2 << 20
"""The program fails on a message with a longer text; of 2 MiB it was seen to take one."""
MAX_TOTAL_BYTES: Final = 12 << 20
"""Of all files of a turn: they stay in the conversation."""
PDF: Final = "application/pdf"
IMAGES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
TEXTS: Final = ("text/plain", "text/markdown", "text/csv", "application/json")
DOCUMENTS: Final = (PDF, *TEXTS)
Block = dict[str, Any]


class FileReader(Protocol):
    """Reads a turn's files through the file facade."""

    async def read(self, file: runtime_pb2.FileRef) -> bytes:
        """The content. Raises HarnessError."""
        ...


class LeftOut(Exception):
    """Why a file is not shown to the model, as the end of a sentence."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


async def content_of_turn(turn: Turn) -> tuple[str | Sequence[Block], list[Draft]]:
    """The content, and a warning for each file that is left out of it. Raises HarnessError for a file that cannot be read."""
    if not turn.files:
        return turn.message, []
    return await content_of(turn.message, turn.files, turn.files_access)


async def content_of(
    message: str, files: Sequence[runtime_pb2.FileRef], reader: FileReader
) -> tuple[Sequence[Block], list[Draft]]:
    """As `content_of_turn`: the files in their order, then the message."""
    blocks: list[Block] = []
    warnings: list[Draft] = []
    counts, total = dict[bool, int](), 0
    for file in files:
        kind = file.media_type.lower()
        is_image = kind.startswith("image/")
        try:
            _check_kind(kind, counts.get(is_image, 0))
            _check_size(file.size, total, kind)
            data = await reader.read(file)
            _check_size(len(data), total, kind)
            blocks.append(_block(kind, file.name, data))
        except LeftOut as left:
            details = {"file_id": file.file_id, "reason": left.code}
            warnings.append(events.warning("file_left_out", f"A file was left out: {left.why}.", details))
            continue
        counts[is_image] = counts.get(is_image, 0) + 1
        total += len(data)
    if message or not blocks:
        blocks.append({"type": "text", "text": message})
    return blocks, warnings


def _check_kind(kind: str, before: int) -> None:
    if not kind:
        # The control plane knows nothing of it any more.
        raise LeftOut("gone", "it is not there any more")
    if kind not in IMAGES and kind not in DOCUMENTS:
        raise LeftOut("media_type", f"the model reads no {kind}")
    if before >= MAX_FILES:
        raise LeftOut("count", f"the model reads {MAX_FILES} images and {MAX_FILES} documents of one turn")


def _check_size(size: int, total: int, kind: str) -> None:
    most = MAX_IMAGE_BYTES if kind in IMAGES else MAX_DOCUMENT_BYTES if kind == PDF else MAX_TEXT_BYTES
    if size > most:
        raise LeftOut("size", f"it has more than {most} bytes")
    if total + size > MAX_TOTAL_BYTES:
        raise LeftOut("total", f"the files of a turn may have {MAX_TOTAL_BYTES} bytes together")


def _block(kind: str, name: str, data: bytes) -> Block:
    if not data:
        raise LeftOut("empty", "it is empty")
    if kind in IMAGES:
        if not data.startswith(IMAGES[kind]):
            raise LeftOut("content", f"it is no {kind}, as it is said to be")
        return {"type": "image", "source": _encoded(kind, data)}
    if kind == PDF:
        if b"%PDF-" not in data[:1024]:
            raise LeftOut("content", f"it is no {kind}, as it is said to be")
        return {"type": "document", "source": _encoded(kind, data), **_titled(name)}
    try:
        said = data.decode("utf-8")
    except UnicodeDecodeError:
        raise LeftOut("content", "it is no text in UTF-8") from None
    source = {"type": "text", "media_type": "text/plain", "data": said}
    return {"type": "document", "source": source, **_titled(name)}


def _encoded(kind: str, data: bytes) -> Block:
    return {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode("ascii")}


def _titled(name: str) -> Block:
    return {"title": name} if name else {}
