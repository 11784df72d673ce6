"""Which mesh is spoken to, and as whom: HARNESS_URL, HARNESS_TOKEN, HARNESS_SUBJECT (REST API; I32)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cli.errors import CommandError, ExitCode

DEFAULT_URL = "http://127.0.0.1:8010"
DEVELOPMENT_TOKEN = "local-development-only"  # noqa: S105 - public on purpose, and sent to loopback only
LOCAL_SUBJECT = "local-user"
MAX_SUBJECT_CHARACTERS = 256
MAX_TOKEN_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class Connection:
    """Where requests go and what they carry."""

    url: str
    token: str = field(repr=False)
    subject: str

    @property
    def is_loopback(self) -> bool:
        """Whether the mesh is on this machine."""
        return _is_loopback(urlsplit(self.url).hostname or "")


def connection_from(environment: Mapping[str, str], url: str = "") -> Connection:
    """The connection the environment describes; `url` replaces HARNESS_URL. Raises CommandError (exit 2) that names the variable."""
    url = _checked_url(url or environment.get("HARNESS_URL", "") or DEFAULT_URL)
    local = _is_loopback(urlsplit(url).hostname or "")
    token = environment.get("HARNESS_TOKEN", "") or _token_file(environment)
    if not token:
        # I32: the token everybody knows is for this machine only.
        if not local:
            raise _wrong(
                f"HARNESS_TOKEN is not set, and {url} is not on this machine.",
                "Set HARNESS_TOKEN (or HARNESS_TOKEN_FILE) to a service token of that mesh.",
            )
        token = DEVELOPMENT_TOKEN
    if len(token) > MAX_TOKEN_CHARACTERS or not all(0x21 <= ord(char) < 0x7F for char in token):
        raise _wrong(
            f"HARNESS_TOKEN is not a token: 1 to {MAX_TOKEN_CHARACTERS} printable ASCII characters without spaces.",
            "Look for a line break or a space that was copied with it.",
        )
    return Connection(url, token, _subject(environment, url, local))


def _subject(environment: Mapping[str, str], url: str, local: bool) -> str:
    subject = environment.get("HARNESS_SUBJECT", "")
    if not subject:
        if not local:
            raise _wrong(
                f"HARNESS_SUBJECT is not set, and {url} is not on this machine.",
                "Set HARNESS_SUBJECT to the stable id of the user you act for.",
            )
        return LOCAL_SUBJECT
    printable = all(0x20 <= ord(char) < 0x7F for char in subject)
    if len(subject) > MAX_SUBJECT_CHARACTERS or not printable or subject != subject.strip():
        raise _wrong(
            f"HARNESS_SUBJECT is not a subject: 1 to {MAX_SUBJECT_CHARACTERS} printable ASCII characters.",
            "Set it to the stable id of the user you act for.",
        )
    return subject


def _token_file(environment: Mapping[str, str]) -> str:
    path = environment.get("HARNESS_TOKEN_FILE", "")
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_TOKEN_CHARACTERS + 2)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise _wrong(
            f"HARNESS_TOKEN_FILE: {path} cannot be read: {reason}.", "Name a file that holds the token."
        ) from None
    token = data.decode("latin-1").strip()
    if not token:
        raise _wrong(f"HARNESS_TOKEN_FILE: {path} is empty.", "Name a file that holds the token.")
    return token


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or not (url.isascii() and url.isprintable())
    ):
        raise _wrong("HARNESS_URL is not a URL.", f"It looks like {DEFAULT_URL}.")
    if parts.username is not None or parts.query or parts.fragment:
        raise _wrong(
            "HARNESS_URL holds a user, a query or a fragment.",
            f"Give scheme, host and port only, like {DEFAULT_URL}; the token belongs in HARNESS_TOKEN.",
        )
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong(message: str, hint: str) -> CommandError:
    return CommandError(message, ExitCode.USAGE, "configuration", hint)
