"""Steers the model behind a real managed harness by asking it, as `live_claude` does. Nothing but the opt-in suite uses it."""

import os
from typing import Any

from tests.conformance.live_claude import LiveDriver

ARN = "HARNESS_AGENTCORE_LIVE_ARN"
ROLE = "HARNESS_AGENTCORE_LIVE_ROLE_ARN"
MODEL = "HARNESS_AGENTCORE_LIVE_MODEL"


def region() -> str:
    """The harness's own: the fourth part of its ARN."""
    return os.environ[ARN].split(":")[3]


class LiveAgentCoreDriver(LiveDriver):
    """One text, or one call of a tool and a text; and conversation."""

    name = "agentcore-live"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """The operator's harness, and a model if one is named. The canary is the remark that nobody reads."""
        settings: dict[str, Any] = {"harness_arn": os.environ[ARN], "region": region(), "note": canary}
        return {**settings, "model": os.environ[MODEL]} if MODEL in os.environ else settings
