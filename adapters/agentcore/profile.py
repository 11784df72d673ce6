"""What an operator's profile says of this harness: its settings, checked, each problem with the name of its key (I32)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from adapters.sdk.errors import ConfigurationError

HARNESS, RUNTIME, PER_AGENT = "harness", "runtime", "per_agent"
PROVIDER_TOOL_TYPES = ("remote_mcp", "agentcore_browser", "agentcore_gateway", "agentcore_code_interpreter")
MAX_TEXT_CHARACTERS = 4_096
MAX_ENTRIES = 64
MAX_PAYLOAD_CHARACTERS = 64 * 1024
_HARNESS_ARN = re.compile(
    r"arn:[^:\s]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:harness/[a-zA-Z][a-zA-Z0-9_]{0,39}-[a-zA-Z0-9]{10}"
)
_RUNTIME_ARN = re.compile(r"arn:[^:\s]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:runtime/[a-zA-Z0-9_-]{1,64}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}")
_QUALIFIER = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,47}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile. Nothing of it is for clients (I18)."""

    # `harness`: one managed harness for all agents; `runtime`: a custom runtime; `per_agent`: a managed harness for each agent.
    mode: str = HARNESS
    # Empty: the region of the process's environment.
    region: str = ""
    # Empty: the service's own.
    endpoint_url: str = field(default="", repr=False)
    control_endpoint_url: str = field(default="", repr=False)
    harness_arn: str = field(default="", repr=False)
    runtime_arn: str = field(default="", repr=False)
    # Endpoint of the harness or runtime; empty: its default one.
    qualifier: str = ""
    # What a custom runtime is sent: texts that are `$message`, `$system_prompt`, `$session_id` or `$user_id` are replaced.
    payload: Mapping[str, Any] = field(default_factory=lambda: {"prompt": "$message"}, repr=False)
    # Where the text of a custom runtime's JSON stands, as `event.contentBlockDelta.delta.text`; empty: under the first usual name that has one.
    text_path: str = ""
    # Model id where the blueprint leaves the choice to the operator; empty: the harness's own model.
    model: str = ""
    # Model ids by the aliases an author may pick.
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    # Tools the provider runs itself, as InvokeHarness takes them; sent beside the agent's own.
    provider_tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    # Further entries of `allowedTools`; the tools that are sent are in it anyway.
    allowed_tools: tuple[str, ...] = ()
    # Whether StopRuntimeSession is allowed: after a cancel, and when a conversation is closed.
    stop_session: bool = True
    # Streams at the same time, to one region and endpoint.
    max_connections: int = 256
    # Seconds without a byte of an answer after which its stream counts as broken.
    read_timeout_seconds: int = 300
    # How often an invocation is sent again that cannot have run: throttled, or never connected.
    max_retries: int = 1
    # For certification: plays failures that no provider would say.
    allow_faults: bool = False
    # A remark of the operator's; nothing reads it.
    note: str = field(default="", repr=False)
    # What provisioning is told, where there is a harness for each agent.
    per_agent: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def managed(self) -> bool:
        """Whether turns go to a managed harness."""
        return self.mode != RUNTIME


def read_profile(settings: Mapping[str, Any]) -> Profile:
    """The profile of these settings. Raises ConfigurationError that names the first key that is wrong."""
    for key in settings:
        if key not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise ConfigurationError(
                f"The profile's settings have no key {key!r}; use {known}.", code="profile_invalid"
            )
    profile = Profile(**{key: _READERS[key](key, value) for key, value in settings.items()})
    if profile.mode == HARNESS and not profile.harness_arn:
        raise _wrong("harness_arn", "is missing: mode `harness` needs it")
    if profile.mode == RUNTIME and not profile.runtime_arn:
        raise _wrong("runtime_arn", "is missing: mode `runtime` needs it")
    return profile


def _wrong(key: str, must: str) -> ConfigurationError:
    # I18: of the value nothing is said; it may be an ARN or worse.
    return ConfigurationError(f"The profile's setting {key} {must}.", code="profile_invalid")


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_CHARACTERS:
        raise _wrong(key, f"must be a text of 1 to {MAX_TEXT_CHARACTERS} characters")
    return value


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str, object], str]:
    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(key, f"must be {what}")
        return value

    return read


def _one_of(*choices: str) -> Callable[[str, object], str]:
    def read(key: str, value: object) -> str:
        if value not in choices:
            raise _wrong(key, f"must be one of {', '.join(choices)}")
        return cast("str", value)

    return read


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, "must be true or false")
    return value


def _number(least: int, most: int) -> Callable[[str, object], int]:
    def read(key: str, value: object) -> int:
        # Numbers of a profile arrive as doubles.
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise _wrong(key, f"must be a whole number from {least} to {most}")
        if value != int(value):
            raise _wrong(key, f"must be a whole number from {least} to {most}")
        return int(value)

    return read


def _url(key: str, value: object) -> str:
    text = _text(key, value)
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        raise _wrong(key, "must be http:// or https:// with a host") from None
    if not whole or parts.username or parts.query or parts.fragment:
        raise _wrong(key, "must be http:// or https:// with a host, and without user, query and fragment")
    return text


def _object(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict) or len(repr(cast("object", value))) > MAX_PAYLOAD_CHARACTERS:
        raise _wrong(key, f"must be an object of at most {MAX_PAYLOAD_CHARACTERS} characters")
    return cast("Mapping[str, Any]", value)


def _list(key: str, value: object, of: Callable[[str, object], T]) -> tuple[T, ...]:
    if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_ENTRIES:
        raise _wrong(key, f"must be a list of at most {MAX_ENTRIES} entries")
    return tuple(of(f"{key}[{number}]", one) for number, one in enumerate(cast("list[object]", value)))


def _texts(key: str, value: object) -> tuple[str, ...]:
    return _list(key, value, _text)


def _provider_tools(key: str, value: object) -> tuple[Mapping[str, Any], ...]:
    return _list(key, value, _provider_tool)


def _provider_tool(key: str, value: object) -> Mapping[str, Any]:
    given = _object(key, value)
    if given.get("type") not in PROVIDER_TOOL_TYPES or set(given) - {"type", "name", "config"}:
        kinds = ", ".join(PROVIDER_TOOL_TYPES)
        raise _wrong(key, f"must have a type of {kinds} and, if wanted, name and config, and nothing else")
    return given


def _models(key: str, value: object) -> Mapping[str, str]:
    given = _object(key, value)
    if len(given) > MAX_ENTRIES:
        raise _wrong(key, f"must be a mapping with at most {MAX_ENTRIES} entries")
    return {alias: _text(f"{key}.{alias}", one) for alias, one in given.items()}


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "mode": _one_of(HARNESS, RUNTIME, PER_AGENT),
    "region": _matching(_REGION, "a region, as eu-central-1"),
    "endpoint_url": _url,
    "control_endpoint_url": _url,
    "harness_arn": _matching(_HARNESS_ARN, "the ARN of a harness"),
    "runtime_arn": _matching(_RUNTIME_ARN, "the ARN of a runtime"),
    "qualifier": _matching(_QUALIFIER, "the name of an endpoint"),
    "payload": _object,
    "text_path": _text,
    "model": _text,
    "models": _models,
    "provider_tools": _provider_tools,
    "allowed_tools": _texts,
    "stop_session": _flag,
    "max_connections": _number(1, 2_000),
    "read_timeout_seconds": _number(1, 3_600),
    "max_retries": _number(0, 5),
    "allow_faults": _flag,
    "note": _text,
    "per_agent": _object,
}
