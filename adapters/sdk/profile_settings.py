"""Reading the settings of an operator's profile: each reader takes one value and says what is wrong with it by the name of its key (I32).

An adapter names a reader for every key it knows, and fills its own dataclass with what they give:

    READERS = {"region": matching(REGION, "a region, as eu-central-1"), "max_retries": whole(0, 5)}
    profile = Profile(**read_settings(settings, READERS))

Of a value nothing is said in any message: it may be an address, a path, or worse (I18).
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from adapters.sdk.errors import ConfigurationError

MAX_TEXT_CHARACTERS = 4_096
MAX_ENTRIES = 64
"""Of a list, and of a mapping."""
MAX_OBJECT_CHARACTERS = 64 * 1024
T = TypeVar("T")
Reader = Callable[[str, object], T]
"""Takes the name of a key and its value. Raises ConfigurationError, `profile_invalid`."""


def read_settings(settings: Mapping[str, Any], readers: Mapping[str, Reader[Any]]) -> dict[str, Any]:
    """Every setting, read by the reader of its key. Raises ConfigurationError that names the first key that is unknown or wrong."""
    for key in settings:
        if key not in readers:
            known = ", ".join(sorted(readers))
            raise ConfigurationError(
                f"The profile's settings have no key {key!r}; use {known}.", code="profile_invalid"
            )
    return {key: readers[key](key, value) for key, value in settings.items()}


def wrong(key: str, must: str) -> ConfigurationError:
    """The error of a setting, for readers of an adapter's own: `must` ends the sentence that begins with the key."""
    return ConfigurationError(f"The profile's setting {key} {must}.", code="profile_invalid")


def text(key: str, value: object) -> str:
    """A text of 1 to 4,096 characters."""
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_CHARACTERS:
        raise wrong(key, f"must be a text of 1 to {MAX_TEXT_CHARACTERS} characters")
    return value


def path(key: str, value: object) -> Path:
    """The name of a file or folder. Nobody looks whether it is there."""
    return Path(text(key, value))


def flag(key: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(key, "must be true or false")
    return value


def url(key: str, value: object) -> str:
    """An address of http or https, without user, query and fragment: what is secret has keys of its own."""
    given = text(key, value)
    try:
        parts = urlsplit(given)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole, parts = False, urlsplit("")
    if not is_whole or parts.username or parts.query or parts.fragment:
        raise wrong(key, "must be http:// or https:// with a host, and without user, query and fragment")
    return given


def json_object(key: str, value: object) -> Mapping[str, Any]:
    """An object whose shape is the adapter's or the provider's affair, of at most 65,536 characters."""
    if not isinstance(value, dict) or len(repr(cast("object", value))) > MAX_OBJECT_CHARACTERS:
        raise wrong(key, f"must be an object of at most {MAX_OBJECT_CHARACTERS} characters")
    return cast("Mapping[str, Any]", value)


def one_of(*choices: str) -> Reader[str]:
    """One of these texts."""

    def read(key: str, value: object) -> str:
        if value not in choices:
            raise wrong(key, f"must be one of {', '.join(choices)}")
        return cast("str", value)

    return read


def matching(pattern: re.Pattern[str], what: str) -> Reader[str]:
    """A text that the whole pattern fits. `what`: what that is, for the message."""

    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise wrong(key, f"must be {what}")
        return value

    return read


def whole(least: int, most: int) -> Reader[int]:
    """A whole number in these bounds. Numbers of a profile arrive as doubles."""

    def read(key: str, value: object) -> int:
        number = _number(value)
        if number is None or not least <= number <= most or number != int(number):
            raise wrong(key, f"must be a whole number from {least} to {most}")
        return int(number)

    return read


def number(least: float, most: float) -> Reader[float]:
    """A number in these bounds."""

    def read(key: str, value: object) -> float:
        found = _number(value)
        if found is None or not least <= found <= most:
            raise wrong(key, f"must be a number from {least:g} to {most:g}")
        return found

    return read


def list_of(of: Reader[T]) -> Reader[tuple[T, ...]]:
    """A list of at most 64 such entries."""

    def read(key: str, value: object) -> tuple[T, ...]:
        if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_ENTRIES:
            raise wrong(key, f"must be a list of at most {MAX_ENTRIES} entries")
        return tuple(of(f"{key}[{place}]", one) for place, one in enumerate(cast("list[object]", value)))

    return read


def mapping_of(of: Reader[T]) -> Reader[Mapping[str, T]]:
    """A mapping of at most 64 such entries."""

    def read(key: str, value: object) -> Mapping[str, T]:
        if not isinstance(value, dict) or len(cast("dict[str, object]", value)) > MAX_ENTRIES:
            raise wrong(key, f"must be a mapping with at most {MAX_ENTRIES} entries")
        return {name: of(f"{key}.{name}", one) for name, one in cast("dict[str, object]", value).items()}

    return read


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
