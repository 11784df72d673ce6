"""An HTTP request as the request message of its operation: body, path and query; every field problem at once (REST API)."""

# pyright: standard
# Requests are known by their descriptors only, so their fields are untyped here.

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from google.protobuf import message_factory
from google.protobuf.message import Message

from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.gateway.codec import message_decoder, parameter_decoder, parse_json
from services.gateway.codec.decode import BAD, Issues, problem
from services.gateway.envelope import Refused
from services.gateway.operations import Operation

MAX_PARAMETERS = 64
MAX_BODIES = 16
"""Bodies of the largest size that may be held at once."""
BODY_RETRY_SECONDS = 1.0
LAST_EVENT_ID = b"last-event-id"
Receive = Callable[[], Awaitable[Any]]
Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The connection ended before the request did; nobody is left to answer."""


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


class BodySpace:
    """What the bodies of all requests that are being served may have together, in bytes (I35)."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def take(self, size: int) -> None:
        """Raises `capacity` when there is not that much left."""
        if size > self._left:
            raise HarnessError(
                Reason.CAPACITY, "Too many large requests are being served; try again.", retry_after=BODY_RETRY_SECONDS
            )
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


async def read_body(
    headers: Headers, receive: Receive, take: Callable[[int], None], *, max_bytes: int, timeout: float
) -> bytes:
    """The whole body; `take` is told of every piece of it. 413 as soon as it is known to be too large, without reading on; 408 when it does not
    come in time.
    """
    lengths = header_values(headers, b"content-length")
    if lengths and int(lengths[0]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                size += len(message["body"])
                # I35: a body without a length is bounded while it comes.
                if size > max_bytes:
                    raise _too_large(max_bytes)
                take(len(message["body"]))
                parts.append(message["body"])
                if not message["more_body"]:
                    return b"".join(parts)
    except TimeoutError:
        raise Refused(408, f"The request body did not arrive within {timeout:g} seconds.") from None


def _too_large(max_bytes: int) -> HarnessError:
    return HarnessError(Reason.BODY_TOO_LARGE, f"The request body may have {max_bytes} bytes.")


def check_content_type(headers: Headers) -> None:
    """JSON in UTF-8, or nothing said; 415 otherwise."""
    for value in header_values(headers, b"content-type"):
        kind, *parameters = (part.strip().lower() for part in value.decode("latin-1").split(";"))
        charset = [part for part in parameters if part.startswith("charset=")]
        if kind != "application/json" or charset not in ([], ["charset=utf-8"], ['charset="utf-8"']):
            raise Refused(415, "The request body must be application/json in UTF-8.")


def build_request(
    operation: Operation, path_values: Sequence[str], query: bytes, body: bytes | None, headers: Headers
) -> Message:
    """The request message. Raises `invalid_request` with every problem of body, path, query and cursor."""
    issues: Issues = []
    if body is None:
        message = message_factory.GetMessageClass(operation.request)()
    else:
        message = message_decoder(operation.request)(parse_json(body), "", issues)
        if message is BAD:
            raise invalid_request(issues)
    _read_path(operation, path_values, message, body is not None, issues)
    _read_query(operation, query, message, issues)
    if operation.streams:
        _read_last_event_id(headers, message, issues)
    if issues:
        raise invalid_request(issues)
    return message


def _read_path(operation: Operation, values: Sequence[str], message: Message, with_body: bool, issues: Issues) -> None:
    for field, text in zip(operation.path_fields, values, strict=True):
        value = parameter_decoder(field)([text], field.name, issues)
        if value is BAD:
            continue
        given = getattr(message, field.name)
        if with_body and given and given != value:
            problem(issues, field.name, "path_mismatch", "The value in the body differs from the one in the path.")
        setattr(message, field.name, value)


def _read_query(operation: Operation, query: bytes, message: Message, issues: Issues) -> None:
    if not query:
        return
    known = {field.name: field for field in operation.parameters}
    given: dict[str, list[str]] = {}
    pairs = query.split(b"&", MAX_PARAMETERS)
    if len(pairs) > MAX_PARAMETERS:
        raise invalid_request([FieldIssue("", "too_many_parameters", f"At most {MAX_PARAMETERS} query parameters.")])
    for pair in pairs:
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _text(raw_name), _text(raw_value)
        if name is None or name not in known:
            # The name is not repeated: a secret in the wrong place must not come back in an answer or a log.
            problem(issues, "", "unknown_parameter", "There is an unknown query parameter.")
        elif value is None:
            problem(issues, name, "invalid_utf8", "The parameter is not valid UTF-8.")
        else:
            given.setdefault(name, []).append(value)
    for name, texts in given.items():
        field = known[name]
        value = parameter_decoder(field)(texts, name, issues)
        if value is BAD:
            continue
        if field.is_repeated:
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def _text(raw: bytes) -> str | None:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _read_last_event_id(headers: Headers, message: Message, issues: Issues) -> None:
    """What a browser sends when it comes back wins over `after`, which is only where it once began."""
    values = header_values(headers, LAST_EVENT_ID)
    if not values:
        return
    field = message.DESCRIPTOR.fields_by_name["after"]
    cursor = parameter_decoder(field)([value.decode("latin-1") for value in values], "Last-Event-ID", issues)
    if cursor is not BAD:
        message.after = cursor  # type: ignore[attr-defined] - the one streaming request has it
        issues[:] = [issue for issue in issues if issue.path != "after"]
