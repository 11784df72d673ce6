"""What may pass: the paths of the Messages API, and of a request and an answer the headers that a model needs (I28). Pure."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode

from services.egress.refusal import Refusal

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
HEALTH: Final = "/healthz"
"""Answered by the egress itself, to whoever asks: it says that the process serves."""
_PATHS: Final = frozenset({MESSAGES, COUNT_TOKENS})
_QUERY: Final = frozenset({"beta"})
# Everything else says something of the sandbox, or could say something to whoever is behind the endpoint.
_ASKED: Final = frozenset({"accept", "anthropic-beta", "anthropic-version", "content-length", "content-type"})
_ANSWERED: Final = frozenset(
    {
        "content-encoding",
        "content-length",
        "content-type",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
    }
)
MAX_HEADER_CHARACTERS: Final = 4_096
_BEARER: Final = "bearer "

Headers = Iterable[tuple[str, str]]


def passes(method: str, path: str) -> bool:
    """Whether a request may go to an endpoint at all."""
    return method == "POST" and path in _PATHS


def query_that_passes(query: str) -> str:
    """The part of a query that may go along."""
    return urlencode([(name, value) for name, value in parse_qsl(query) if name in _QUERY and len(value) <= 64])


def request_headers(headers: Headers) -> dict[str, str]:
    """The headers that go to the endpoint, without credential; several of one name are one list. What is encoded comes back as it is: nothing here
    unpacks it. Raises `Refusal` for a header that cannot go along whole.
    """
    kept: dict[str, str] = {}
    for name, value in headers:
        if name in _ASKED:
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    for name, value in kept.items():
        if not value.isascii() or len(value) > MAX_HEADER_CHARACTERS:
            raise Refusal(400, f"The header {name} must have at most {MAX_HEADER_CHARACTERS} characters of ASCII.")
    kept["accept-encoding"] = "identity"
    return kept


def response_headers(headers: Headers) -> dict[str, str]:
    """The headers that go back into the sandbox, but for what is no ASCII or too long."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if name in _ANSWERED and name not in kept and value.isascii() and len(value) <= MAX_HEADER_CHARACTERS:
            kept[name] = value
    return kept


def presented_token(headers: Headers) -> str:
    """The capability token of a request: as a bearer token or as an API key, whichever the SDK sends; empty without one, or with two that differ."""
    found = {
        value[len(_BEARER) :].strip() if name == "authorization" else value
        for name, value in headers
        if (name == "authorization" and value.lower().startswith(_BEARER)) or name == "x-api-key"
    }
    return found.pop() if len(found) == 1 else ""
