"""Frames of `application/vnd.amazon.eventstream`: prelude, headers, payload, and a checksum after each half."""

import json
import struct
import zlib
from typing import Any

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One frame. Lengths count the whole frame and the headers, in bytes; both checksums are CRC-32."""
    head = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    body = prelude + head + payload
    return body + struct.pack("!I", zlib.crc32(body))


def event(kind: str, data: dict[str, Any]) -> bytes:
    """An event of the stream, its data as JSON."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(data).encode())


def exception(kind: str, data: dict[str, Any]) -> bytes:
    """An exception in the stream; one that the service's model does not know is told just so."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps(data).encode())


def _header(name: str, value: str) -> bytes:
    said, told = name.encode(), value.encode()
    return struct.pack("!B", len(said)) + said + struct.pack("!BH", _STRING, len(told)) + told
