"""What an author may set: the options schema of the descriptor, and an agent's options read by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.sdk.errors import ConfigurationError

MAX_ITERATIONS = 1_000
MAX_TOKENS = 1_000_000

OPTIONS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "max_iterations": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_ITERATIONS,
            "default": 0,
            "title": "Most iterations",
            "description": "How often the model may be asked within one invocation; 0 leaves it to the harness.",
        },
        "max_tokens": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_TOKENS,
            "default": 0,
            "title": "Most tokens",
            "description": "How many tokens one invocation may write; 0 leaves it to the harness.",
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
DEFAULTS: Mapping[str, Any] = {"max_iterations": 0, "max_tokens": 0, "ask_person": False}


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """An agent's options; 0 leaves a bound to the harness."""

    max_iterations: int = 0
    max_tokens: int = 0
    ask_person: bool = False


def read_options(options: Mapping[str, Any]) -> AgentOptions:
    """The options; the catalog has held them against the schema. Raises ConfigurationError for a key there is none of."""
    for key in options:
        if key not in DEFAULTS:
            raise ConfigurationError(
                f"harness.options has no key {key!r}; use {', '.join(DEFAULTS)}.", code="options_invalid"
            )
    return AgentOptions(
        int(options.get("max_iterations", 0)), int(options.get("max_tokens", 0)), options.get("ask_person") is True
    )
