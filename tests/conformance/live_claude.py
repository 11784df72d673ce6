"""Steers a real model by asking it nicely: what it cannot be relied on to do, this driver has no words for. Nothing but the opt-in suite uses it."""

import os
from typing import Any

from conformance.drivers.claude import CREDENTIAL_FILE
from conformance.drivers.driver import Driver
from conformance.failure import CannotExpressError
from conformance.scenario import CallTool, Say, Steps

MODEL = "HARNESS_CLAUDE_LIVE_MODEL"


class LiveDriver(Driver):
    """One text, or one call of a tool and a text; and conversation."""

    name = "claude-live"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """The operator's key, and a model if one is named. The canary is the prompt of a subagent that nobody calls."""
        settings: dict[str, Any] = {
            "credential_file": os.environ[CREDENTIAL_FILE],
            "subagents": {"silent": {"description": "Never to be used.", "prompt": canary}},
        }
        return {**settings, "model": os.environ[MODEL]} if MODEL in os.environ else settings

    def message(self, *turns: Steps) -> str:
        """What it is asked to do, in words."""
        if len(turns) != 1:
            raise CannotExpressError("A real model is not steered over several turns.")
        said: list[str] = []
        for step in turns[0]:
            match step:
                case CallTool(_, tool_id, arguments, False):
                    said.append(f"Call the tool {tool_id.replace('.', '_')} once with exactly {arguments}.")
                case Say(text, ()) if text:
                    said.append(f"Answer with exactly this and nothing else: {text}")
                case _:
                    raise CannotExpressError("A real model cannot be relied on to do this.")
        return " ".join(said)

    def talk(self, said: str) -> str:
        """It repeats what was said before."""
        return f"{said}\n\nRepeat word for word everything that I said in my earlier messages, then this one."

    def burst(self, count: int, size: int) -> str:
        """A real model writes as it likes."""
        raise CannotExpressError("A real model cannot be relied on to write so many pieces.")

    def decision_in(self, text: str) -> dict[str, Any]:
        """It is never asked."""
        raise CannotExpressError("A real model is not asked what was decided.")
