"""Page tokens: where a listing goes on, opaque to clients and checked when they come back."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from services.common.errors import FieldIssue, HarnessError, invalid_request

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 200
_AGENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_VERSION: Final = (1 << 32) - 1


def page_size(asked: int) -> int:
    """Records of a page; zero asks for the default."""
    return min(asked or DEFAULT_PAGE, MAX_PAGE)


def agents_token(last_agent_id: str) -> str:
    """Goes on after this agent."""
    return _encode(f"a:{last_agent_id}")


def after_agent(token: str) -> str | None:
    """The agent a page starts after, None for the first page. Errors: `invalid_request`."""
    if not token:
        return None
    text = _decode(token)
    if not text.startswith("a:") or not _AGENT_ID.fullmatch(text[2:]):
        raise _bad_token()
    return text[2:]


def versions_token(agent_id: str, last_version: int) -> str:
    """Goes on below this version of this agent."""
    return _encode(f"v:{agent_id}:{last_version}")


def below_version(token: str, agent_id: str) -> int | None:
    """The version a page starts below, None for the first page. Errors: `invalid_request`, also for another agent's token."""
    if not token:
        return None
    kind, _, rest = _decode(token).partition(":")
    owner, _, number = rest.rpartition(":")
    if kind != "v" or owner != agent_id or not re.fullmatch(r"[1-9][0-9]{0,9}", number):
        raise _bad_token()
    version = int(number)
    if version > _MAX_VERSION:
        raise _bad_token()
    return version


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("ascii")).rstrip(b"=").decode("ascii")


def _decode(token: str) -> str:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        text = data.decode("ascii")
    except (binascii.Error, ValueError):
        raise _bad_token() from None
    # Only what _encode makes: one position, one token.
    if _encode(text) != token:
        raise _bad_token()
    return text


def _bad_token() -> HarnessError:
    return invalid_request(
        [FieldIssue("page_token", "invalid_page_token", "Send the next_page_token of the page before, or none.")]
    )
