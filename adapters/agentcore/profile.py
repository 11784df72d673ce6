"""What an operator's profile says of this harness: its settings, checked, each problem with the name of its key (I32)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.sdk.profile_settings import (
    Reader,
    flag,
    json_object,
    list_of,
    mapping_of,
    matching,
    one_of,
    read_settings,
    text,
    url,
    whole,
    wrong,
)

HARNESS, RUNTIME, PER_AGENT = "harness", "runtime", "per_agent"
PROVIDER_TOOL_TYPES = ("remote_mcp", "agentcore_browser", "agentcore_gateway", "agentcore_code_interpreter")
_HARNESS_ARN = re.compile(
    r"arn:[^:\s]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:harness/[a-zA-Z][a-zA-Z0-9_]{0,39}-[a-zA-Z0-9]{10}"
)
_RUNTIME_ARN = re.compile(r"arn:[^:\s]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:runtime/[a-zA-Z0-9_-]{1,64}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}")
_QUALIFIER = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,47}")


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
    profile = Profile(**read_settings(settings, _READERS))
    if profile.mode == HARNESS and not profile.harness_arn:
        raise wrong("harness_arn", "is missing: mode `harness` needs it")
    if profile.mode == RUNTIME and not profile.runtime_arn:
        raise wrong("runtime_arn", "is missing: mode `runtime` needs it")
    return profile


def _provider_tool(key: str, value: object) -> Mapping[str, Any]:
    given = json_object(key, value)
    if given.get("type") not in PROVIDER_TOOL_TYPES or set(given) - {"type", "name", "config"}:
        kinds = ", ".join(PROVIDER_TOOL_TYPES)
        raise wrong(key, f"must have a type of {kinds} and, if wanted, name and config, and nothing else")
    return given


_READERS: Mapping[str, Reader[Any]] = {
    "mode": one_of(HARNESS, RUNTIME, PER_AGENT),
    "region": matching(_REGION, "a region, as eu-central-1"),
    "endpoint_url": url,
    "control_endpoint_url": url,
    "harness_arn": matching(_HARNESS_ARN, "the ARN of a harness"),
    "runtime_arn": matching(_RUNTIME_ARN, "the ARN of a runtime"),
    "qualifier": matching(_QUALIFIER, "the name of an endpoint"),
    "payload": json_object,
    "text_path": text,
    "model": text,
    "models": mapping_of(text),
    "provider_tools": list_of(_provider_tool),
    "allowed_tools": list_of(text),
    "stop_session": flag,
    "max_connections": whole(1, 2_000),
    "read_timeout_seconds": whole(1, 3_600),
    "max_retries": whole(0, 5),
    "allow_faults": flag,
    "note": text,
    "per_agent": json_object,
}
