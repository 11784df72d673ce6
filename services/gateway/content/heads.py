"""What the head of an upload says of the file, and what the head of a download tells the client. Pure."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from services.gateway.envelope import Header, Refused
from services.gateway.requests import Headers, header_values

_FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
_UNSAFE_IN_FILENAME: Final = re.compile(r"[^A-Za-z0-9 ._-]")
_POLICY: Final = b"default-src 'none'; sandbox"


def media_type_of(headers: Headers) -> str:
    """What the upload says it is, as it came; whether that is taken is for the sessions service to say. 415 for what is no file as it is."""
    encodings = [value.strip().lower() for value in header_values(headers, b"content-encoding")]
    if any(encoding not in (b"", b"identity") for encoding in encodings):
        raise Refused(415, "Send the file as it is, without Content-Encoding.")
    values = header_values(headers, b"content-type")
    if len(values) != 1 or not values[0].strip():
        raise Refused(415, "Send the header Content-Type once: the media type of the file.")
    declared = values[0].decode("latin-1")
    if declared.partition(";")[0].strip().lower() in _FORMS:
        raise Refused(415, "Send the file itself as the body, with its own media type as Content-Type, not in a form.")
    return declared


def announced_size(headers: Headers) -> int | None:
    """What Content-Length says; None: the body comes in chunks."""
    lengths = header_values(headers, b"content-length")
    return int(lengths[0]) if lengths else None


def content_headers(file: Any) -> Sequence[Header]:
    """The head of a download. Content is somebody's: it is saved, never shown or run, and kept by nothing on the way."""
    charset = "; charset=utf-8" if file.media_type.startswith("text/") else ""
    return (
        (b"content-type", f"{file.media_type}{charset}".encode("ascii")),
        (b"content-length", str(file.size).encode("ascii")),
        (b"content-disposition", disposition(file.name)),
        (b"content-security-policy", _POLICY),
        (b"x-content-type-options", b"nosniff"),
        # I2: answers belong to one subject, who is named in a header that a cache does not know.
        (b"cache-control", b"no-store"),
        (b"accept-ranges", b"none"),
    )


def disposition(name: str) -> bytes:
    """Content-Disposition of a file of this name: a plain form for old clients, and the whole name with nothing in it that could end the value."""
    plain = _UNSAFE_IN_FILENAME.sub("_", name).lstrip(". ") or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode("ascii")
