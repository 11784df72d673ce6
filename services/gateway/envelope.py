"""The one form of every answer: `{"success": true, "data"}` or `{"success": false, "error", "code", "details"}` (REST API)."""

import math
from typing import Any, NamedTuple

import orjson

from services.common.errors import HarnessError, Reason, http_status

JSON = b"application/json"
Header = tuple[bytes, bytes]


class Reply(NamedTuple):
    """A complete HTTP answer. `close`: the connection must not be used again (the request was not read to its end)."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()
    close: bool = False

    def start(self) -> dict[str, Any]:
        """The ASGI message that opens the answer."""
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", str(len(self.body)).encode("ascii")),
            # Answers belong to one subject.
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            *self.headers,
        ]
        if self.close:
            headers.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": self.status, "headers": headers}


def success(data: bytes, status: int = 200) -> Reply:
    """`data` is JSON already."""
    return Reply(status, b'{"success":true,"data":%b}' % data)


def failure(
    error: HarnessError, *, status: int | None = None, headers: tuple[Header, ...] = (), close: bool = False
) -> Reply:
    """The error as clients see it. Facts of an error (`run_id` of a conflict, `incident_id`) are a last entry of `details`: `{path: "", code, message, …}`."""
    details: list[dict[str, str]] = [
        {"path": issue.path, "code": issue.code, "message": issue.message} for issue in error.details
    ]
    if error.metadata:
        facts = {key: error.metadata[key] for key in sorted(error.metadata)}
        details.append({"path": "", "code": error.reason.value, "message": error.message, **facts})
    body: dict[str, Any] = {
        "success": False,
        "error": error.message,
        "code": error.reason.value,
        "details": details,
    }
    status = status or http_status(error)
    wait = error.retry_after
    if wait is None and status in (429, 503) and error.retryable:
        wait = 1.0
    if wait is not None:
        headers = (*headers, (b"retry-after", str(max(1, math.ceil(wait))).encode("ascii")))
    if status == 401:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    return Reply(status, orjson.dumps(body), headers=headers, close=close)


class Refused(Exception):
    """An HTTP-level refusal with a status the table of errors does not have (405, 408, 415)."""

    def __init__(self, status: int, message: str, *, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(message)
        self.reply = failure(HarnessError(Reason.INVALID_REQUEST, message), status=status, headers=headers)
