"""What an author may set: the options schema of the descriptor, and an agent's options read by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from adapters.claude_agent_sdk.profile import Profile
from adapters.sdk.errors import ConfigurationError

MAX_TURNS = 1_000
THINKING = ("provider", "adaptive", "enabled", "disabled")
MIN_BUDGET_TOKENS = 1_024
MAX_BUDGET_TOKENS = 200_000
EFFORTS = ("provider", "low", "medium", "high", "xhigh", "max")

OPTIONS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "max_turns": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_TURNS,
            "default": 0,
            "title": "Most turns",
            "description": "How often the model may be asked within one run; 0 leaves it to the operator.",
        },
        "thinking": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": list(THINKING), "default": "provider"},
                "budget_tokens": {"type": "integer", "minimum": MIN_BUDGET_TOKENS, "maximum": MAX_BUDGET_TOKENS},
            },
            "additionalProperties": False,
            "title": "Thinking",
            "description": "Whether the model reasons before it answers; `enabled` with a budget is for older models.",
        },
        "effort": {
            "type": "string",
            "enum": list(EFFORTS),
            "default": "provider",
            "title": "Effort",
            "description": "How much work the model puts into an answer.",
        },
        "ask_person": {
            "type": "boolean",
            "default": False,
            "title": "May ask",
            "description": "Gives the model a tool with which it asks the person to fill in a form.",
        },
    },
    "additionalProperties": False,
}
DEFAULTS: Mapping[str, Any] = {"max_turns": 0, "effort": "provider", "ask_person": False}


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """An agent's options."""

    # 0: the profile's bound.
    max_turns: int = 0
    thinking: Literal["provider", "adaptive", "enabled", "disabled"] = "provider"
    budget_tokens: int = 0
    effort: str = "provider"
    ask_person: bool = False


def read_options(options: Mapping[str, Any]) -> AgentOptions:
    """The options; the catalog has held them against the schema. Raises ConfigurationError for what the schema cannot say."""
    for key in options:
        if key not in OPTIONS_SCHEMA["properties"]:
            known = ", ".join(OPTIONS_SCHEMA["properties"])
            raise ConfigurationError(f"harness.options has no key {key!r}; use {known}.", code="options_invalid")
    thinking = cast("dict[str, Any]", options.get("thinking") or {})
    kind, budget = str(thinking.get("type", "provider")), int(thinking.get("budget_tokens", 0))
    if (kind == "enabled") != bool(budget):
        raise ConfigurationError(
            "harness.options.thinking: budget_tokens belongs to type `enabled`, and to no other.",
            code="options_invalid",
        )
    return AgentOptions(
        int(options.get("max_turns", 0)),
        cast("Any", kind),
        budget,
        str(options.get("effort", "provider")),
        options.get("ask_person") is True,
    )


def turns_of(options: AgentOptions, profile: Profile) -> int:
    """How often the model may be asked in one run; 0: as often as the run's time allows."""
    bounds = [bound for bound in (options.max_turns, profile.max_turns) if bound]
    return min(bounds, default=0)
