"""What the egress answers itself, in the shape of the Messages API, so that every SDK understands it and knows whether to ask again."""

from typing import Final

import orjson

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Refusal(Exception):
    """A request that ends here. `again`: nothing can have run, so it may be asked again. The text goes into the sandbox."""

    def __init__(self, status: int, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.again = again

    def body(self) -> bytes:
        """The error as the Messages API writes one."""
        return orjson.dumps({"type": "error", "error": {"type": _KINDS[self.status], "message": self.message}})

    def headers(self) -> dict[str, str]:
        """With the hint that SDKs of that API look for."""
        return {"content-type": "application/json", "x-should-retry": "true" if self.again else "false"}
