"""What a descriptor, profile, report or error may show a client: no secret, ARN, endpoint, image, command or path (I18).

A finding names the rule and never the value: the value is what must not be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, cast

MAX_STRING_CHARACTERS: Final = 2_000
"""The longest single text of a descriptor's free-form parts; bounds what the patterns below have to look at (I35)."""
MAX_KEY_CHARACTERS: Final = 128

_CREDENTIAL: Final = re.compile(
    r"\bA[KS]IA[0-9A-Z]{12}|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12}|\bgh[pousr]_[A-Za-z0-9]{16}|\bxox[abprs]-|-----BEGIN |\beyJ[\w-]{10,}\."
)
_TEXT_RULES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("a control character", re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")),
    ("markup", re.compile(r"</?[A-Za-z!]")),
    ("a script link", re.compile(r"(?i)\b(?:javascript|vbscript|data):")),
    ("an ARN", re.compile(r"(?i)\barn:[a-z][a-z0-9-]*:")),
    ("an address", re.compile(r"(?i)\b[a-z][a-z0-9+.-]{0,15}://|\bunix:|\b\d{1,3}(?:\.\d{1,3}){3}\b|\blocalhost:\d")),
    ("a path", re.compile(r"(?:^|[\s\"'`(=:,\[])(?:/[\w.@-]+/[\w.@-]|~/|\.\./|[A-Za-z]:\\)")),
    ("an image reference", re.compile(r"@sha256:[0-9a-f]{8}|\b[\w-]+\.[\w.-]+/[\w./-]+:[\w.-]")),
    ("a credential", _CREDENTIAL),
    (
        "a credential",
        re.compile(
            r"(?i)\b(?:bearer\s+[\w.~+/-]{8}|(?:password|passwd|secret|api[_-]?key|access[_-]?key|token)\s*[=:]\s*\S)"
        ),
    ),
)

_SECRET_WORDS: Final = frozenset(
    {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "authorization", "bearer", "cookie", "cookies",
     "apikey", "accesskey", "privatekey", "jwt"}
)  # fmt: skip
_EXECUTABLE_WORDS: Final = frozenset(
    {"html", "javascript", "script", "scripts", "command", "commands", "cmd", "argv", "exec", "eval", "shell", "env", "envs", "environ",
     "environment", "entrypoint", "dockerfile", "kubeconfig", "import", "module"}
)  # fmt: skip
# Forbidden where they are the noun the key is about: `docker_image` is one, `image_detail` and `max_tokens` are not.
_LAST_WORDS: Final = frozenset(
    {"image", "token", "arn", "arns", "endpoint", "endpoints", "url", "urls", "uri", "uris", "host", "hostname", "path", "paths", "href", "src"}
)  # fmt: skip
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("signing", "key")})  # fmt: skip
_WORDS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


class Finding(NamedTuple):
    """One thing that must not be shown: where (a JSON path) and which kind of thing."""

    path: str
    what: str


def text_problem(text: str) -> str | None:
    """What the text holds that may not be shown, None if nothing."""
    if len(text) > MAX_STRING_CHARACTERS:
        return f"a text of more than {MAX_STRING_CHARACTERS} characters"
    for what, pattern in _TEXT_RULES:  # I18
        if pattern.search(text):
            return what
    return None


def credential_problem(text: str) -> str | None:
    """What is refused also in texts that no client sees: something of the form of a credential. None if nothing."""
    return "a credential" if _CREDENTIAL.search(text) else None


def key_problem(key: str) -> str | None:
    """What a key is the name of that may not be there, None if nothing."""
    if not key or len(key) > MAX_KEY_CHARACTERS:
        return f"a key of 0 or more than {MAX_KEY_CHARACTERS} characters"
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRET_WORDS for word in words) or any(pair in _SECRET_PAIRS for pair in pairwise(words)):
        return "a key that names a secret"  # I18
    if any(word in _EXECUTABLE_WORDS for word in words):
        return "a key that names executable content"  # I18
    if words and words[-1] in _LAST_WORDS:
        return "a key that names a secret" if words[-1] == "token" else "a key that names an image, address or path"
    return text_problem(key)


def safe_text(text: str, instead: str, limit: int) -> str:
    """The text, cut at `limit` characters, or `instead` if it holds what may not be shown (I18, I22)."""
    return instead if text_problem(text[:limit]) is not None else text[:limit]


def findings(value: object, path: str) -> Iterator[Finding]:
    """Everything in a JSON value that may not be shown. The caller bounds the value's size and depth first."""
    if isinstance(value, str):
        problem = text_problem(value)
        if problem is not None:
            yield Finding(path, problem)
    elif isinstance(value, Mapping):
        for number, (key, child) in enumerate(cast(Mapping[str, object], value).items()):
            problem = key_problem(key)
            if problem is not None:
                # The key may itself be the secret, so its place is given by number.
                yield Finding(f"{path}[key {number}]", problem)
            else:
                yield from findings(child, f"{path}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for number, child in enumerate(cast(Sequence[object], value)):
            yield from findings(child, f"{path}[{number}]")
