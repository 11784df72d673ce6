"""What an operator's profile says of this harness: its settings, checked, each problem with the name of its key (I32)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from adapters.sdk.errors import ConfigurationError
from adapters.sdk.rehearsal import ALLOW_FAULTS

PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk")
CREDENTIAL_KINDS = ("api_key", "auth_token")
MAX_ENTRIES = 64
MAX_TEXT_CHARACTERS = 4_096
MAX_PROMPT_CHARACTERS = 100_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subagent:
    """A subagent the operator defined: what it is for, its prompt, the built-in and portable tools it may use (None: all of them), its model."""

    description: str
    prompt: str = field(repr=False)
    tools: tuple[str, ...] | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile. Nothing of it is for clients."""

    # The provider's model id where the blueprint leaves the choice to the operator; empty: the program's own default.
    model: str = ""
    # Model ids by the aliases an author may pick.
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    # Folder below which each runtime has a folder of its own; None: the system's folder for temporary files.
    workspace_root: Path | None = None
    permission_mode: str = "default"
    # Built-in tools of the program that exist for the model at all.
    builtin_tools: tuple[str, ...] = ()
    # Permission rules for them, as `Bash(git log:*)`: calls that need no permission.
    allowed_tools: tuple[str, ...] = ()
    # At most one of the two; neither: the credential of the adapter's own process.
    credential_file: Path | None = field(default=None, repr=False)
    credential_env: str = ""
    # How the credential is sent: as an API key, or as a bearer token, as gateways want it.
    credential_kind: str = "api_key"
    base_url: str = field(default="", repr=False)
    # The most an author may ask for with `max_turns`; 0: no bound but the run's time.
    max_turns: int = 0
    # US dollars that one run may cost by the program's own reckoning; 0: no bound.
    max_budget_usd: float = 0.0
    # How often the program asks again what the provider refused for a moment (429, 5xx).
    max_retries: int = 2
    # Seconds without a byte of an answer after which its stream counts as broken.
    idle_seconds: int = 120
    # For certification: a message may be a rehearsal (adapters.sdk.rehearsal).
    allow_faults: bool = False
    # Folders of skills by the ids a blueprint names.
    skills: Mapping[str, Path] = field(default_factory=dict[str, Path], repr=False)
    # Subagents by the names a model calls them with.
    subagents: Mapping[str, Subagent] = field(default_factory=dict[str, Subagent], repr=False)


def read_profile(settings: Mapping[str, Any]) -> Profile:
    """The profile of these settings. Raises ConfigurationError that names the first key that is wrong. Looks at no file."""
    for key in settings:
        if key not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise ConfigurationError(
                f"The profile's settings have no key {key!r}; use {known}.", code="profile_invalid"
            )
    profile = Profile(**{key: _READERS[key](key, value) for key, value in settings.items()})
    if profile.credential_file is not None and profile.credential_env:
        raise _wrong("credential_env", "may not be given beside credential_file: keep one of the two")
    return profile


def _wrong(key: str, must: str) -> ConfigurationError:
    # I18: of the value nothing is said; it may be a path or worse.
    return ConfigurationError(f"The profile's setting {key} {must}.", code="profile_invalid")


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_CHARACTERS:
        raise _wrong(key, f"must be a text of 1 to {MAX_TEXT_CHARACTERS} characters")
    return value


def _path(key: str, value: object) -> Path:
    return Path(_text(key, value))


def _one_of(*choices: str) -> Callable[[str, object], str]:
    def read(key: str, value: object) -> str:
        if value not in choices:
            raise _wrong(key, f"must be one of {', '.join(choices)}")
        return cast("str", value)

    return read


def _number(least: float, most: float, kind: type[T]) -> Callable[[str, object], T]:
    def read(key: str, value: object) -> T:
        # Numbers of a profile arrive as doubles.
        whole = kind is float or (isinstance(value, int | float) and value == int(value))
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most or not whole:
            raise _wrong(key, f"must be a {'whole ' if kind is int else ''}number from {least:g} to {most:g}")
        return cast("Any", kind)(value)

    return read


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, "must be true or false")
    return value


def _texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_ENTRIES:
        raise _wrong(key, f"must be a list of at most {MAX_ENTRIES} texts")
    return tuple(_text(f"{key}[{number}]", one) for number, one in enumerate(cast("list[object]", value)))


def _mapping(of: Callable[[str, object], T]) -> Callable[[str, object], Mapping[str, T]]:
    def read(key: str, value: object) -> Mapping[str, T]:
        if not isinstance(value, dict) or len(cast("dict[str, object]", value)) > MAX_ENTRIES:
            raise _wrong(key, f"must be a mapping with at most {MAX_ENTRIES} entries")
        return {name: of(f"{key}.{name}", one) for name, one in cast("dict[str, object]", value).items()}

    return read


def _url(key: str, value: object) -> str:
    parts = urlsplit(_text(key, value))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _wrong(key, "must be http:// or https:// with a host, and without user, query and fragment")
    return parts.geturl()


def _subagent(key: str, value: object) -> Subagent:
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    unknown = [name for name in given if name not in ("description", "prompt", "tools", "model")]
    if not isinstance(value, dict) or unknown:
        raise _wrong(key, "must have description, prompt and, if wanted, tools and model, and nothing else")
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not 0 < len(prompt) <= MAX_PROMPT_CHARACTERS:
        raise _wrong(f"{key}.prompt", f"must be a text of 1 to {MAX_PROMPT_CHARACTERS} characters")
    return Subagent(
        _text(f"{key}.description", given.get("description")),
        prompt,
        _texts(f"{key}.tools", given["tools"]) if "tools" in given else None,
        _text(f"{key}.model", given["model"]) if "model" in given else "",
    )


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "model": _text,
    "models": _mapping(_text),
    "workspace_root": _path,
    "permission_mode": _one_of(*PERMISSION_MODES),
    "builtin_tools": _texts,
    "allowed_tools": _texts,
    "credential_file": _path,
    "credential_env": _text,
    "credential_kind": _one_of(*CREDENTIAL_KINDS),
    "base_url": _url,
    "max_turns": _number(0, 10_000, int),
    "max_budget_usd": _number(0, 10_000, float),
    "max_retries": _number(0, 10, int),
    "idle_seconds": _number(1, 3_600, int),
    ALLOW_FAULTS: _flag,
    "skills": _mapping(_path),
    "subagents": _mapping(_subagent),
}
