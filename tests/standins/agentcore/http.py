"""As much of HTTP/1.1 as botocore speaks: requests with a length, answers with a length or in chunks, connections kept alive."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MAX_HEAD = 64 << 10
MAX_BODY = 32 << 20


@dataclass(frozen=True)
class Request:
    """One request. Header names are in lower case; path segments are decoded."""

    method: str
    path: tuple[str, ...]
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def document(self) -> Any:
        """The body as JSON; an empty one is an empty object."""
        return json.loads(self.body) if self.body else {}


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None: the peer has no more."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    if size > MAX_BODY:
        raise ValueError(f"a body of {size} bytes; at most {MAX_BODY}")
    try:
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    url = urlsplit(target)
    path = tuple(unquote(part) for part in url.path.strip("/").split("/"))
    return Request(method, path, parse_qs(url.query), headers, body)


class Reply:
    """What goes back on one connection. After `cut` nothing more can be said on it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.started = False
        self.is_cut = False

    async def whole(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        """An answer with a known length, as JSON; bytes go as they are; None is no body."""
        body = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
        kinds = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
        self._head(status, kinds)
        self._writer.write(body)
        await self._writer.drain()

    async def begin(self, content_type: str, headers: dict[str, str] | None = None) -> None:
        """The head of an answer that follows in chunks."""
        self._head(200, {"content-type": content_type, "transfer-encoding": "chunked", **(headers or {})})
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        """A part of the answer, sent at once."""
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        """The last chunk."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def cut(self) -> None:
        """Resets the connection: what is under way is lost, and the peer is told by RST."""
        self.is_cut = True
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.started = True
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._writer.write(f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode())
