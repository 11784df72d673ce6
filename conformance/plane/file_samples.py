"""Files that the kit gives to a target: small, valid, each with a mark in it that stands nowhere else, and of any size that is asked for."""

import itertools
import json
import secrets
import struct
import zlib
from collections.abc import Callable
from typing import Any

from conformance.plane.files import GivenFile

_numbers = itertools.count(1)
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def made(media_type: str, size: int = 0, **more: Any) -> GivenFile:
    """A new file of this media type, of just `size` bytes if that is more than it needs. `more`: what becomes of a read (GivenFile)."""
    mark = f"kit-file-{secrets.token_hex(16)}"
    content = SAMPLES.get(media_type, _text)(mark, size)
    return GivenFile(f"file-{next(_numbers)}-{secrets.token_hex(4)}", "given-by-the-kit", media_type, content, **more)


def mark_of(file: GivenFile) -> str:
    """The mark in its content."""
    at = file.content.index(b"kit-file-")
    return file.content[at : at + 41].decode()


def _text(mark: str, size: int) -> bytes:
    line = f"# {mark}\n".encode()
    return line + b"Another line.\n" * ((size - len(line)) // 14) + b"." * max(0, (size - len(line)) % 14)


def _csv(mark: str, size: int) -> bytes:
    return b"name,value\n" + _text(mark, size - 11).replace(b"# ", b"x,", 1)


def _json(mark: str, size: int) -> bytes:
    bare = json.dumps({"mark": mark, "more": ""}).encode()
    return json.dumps({"mark": mark, "more": "." * max(0, size - len(bare))}).encode()


def _pdf(mark: str, size: int) -> bytes:
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>",
    )
    head = f"%PDF-1.4\n% {mark}\n".encode()
    body, places = head, list[int]()
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj%s endobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    tail = b"xref\n0 4\n0000000000 65535 f \n%strailer<</Size 4/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    return _padded(body + tail % (table, len(body)), size)


def _png(mark: str, size: int) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    pixel = _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    end = _chunk(b"IEND", b"")
    comment = f"Comment\0{mark}".encode()
    bare = len(_PNG_HEAD) + len(header) + len(pixel) + len(end) + 12 + len(comment)
    return _PNG_HEAD + header + _chunk(b"tEXt", comment + b"." * max(0, size - bare)) + pixel + end


def _gif(mark: str, size: int) -> bytes:
    comment = b"!\xfe" + bytes([len(mark)]) + mark.encode()
    head, tail = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff", b"\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"
    return _padded(head + comment + tail, size)


def _padded(content: bytes, size: int) -> bytes:
    # Readers of these formats stop at their end.
    return content + b"\n" * max(0, size - len(content))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SAMPLES: dict[str, Callable[[str, int], bytes]] = {
    "image/png": _png,
    "image/gif": _gif,
    "text/plain": _text,
    "text/markdown": _text,
    "text/csv": _csv,
    "application/json": _json,
    "application/pdf": _pdf,
}
