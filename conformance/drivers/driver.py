"""What a scenario driver is: one small class per kind of backend (certification, Drivers)."""

from abc import ABC, abstractmethod
from typing import Any

from conformance.scenario import Steps


class Driver(ABC):
    """Steers a target through the messages of its turns. A step that it has no words for raises CannotExpressError.

    What a provider can say, it is made to say; for the rest there are rehearsals (conformance.drivers.rehearsal).
    """

    name: str

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """Operator's settings that make the target steerable. `canary` is a secret to be planted under a name that the target ignores."""
        return {}

    def options(self) -> dict[str, Any]:
        """Options of the harness for the certification's agent."""
        return {}

    def model_address(self) -> str:
        """Where a worker reaches its model with the token of a run, as a sandbox reaches its egress: `host:port` or `unix:/path`. Empty: it has none, and
        is given neither address nor token of the audience `model`.
        """
        return ""

    def skills(self) -> dict[str, str]:
        """Skills that the settings of the profile give, each with a word that stands in it and nowhere else. Two at least, or none: then skills cannot be
        looked at.
        """
        return {}

    def blocked_skill(self) -> str:
        """A skill that the settings name and no agent can use, because it is blocked or cannot be read. Empty: there is none."""
        return ""

    @abstractmethod
    def message(self, *turns: Steps) -> str:
        """The message of a turn that plays the first of `turns`; each further one is played by the resume of the one before."""

    @abstractmethod
    def talk(self, said: str) -> str:
        """A message of plain conversation. The answer to a later one must repeat what was said in the turn before."""

    @abstractmethod
    def burst(self, count: int, size: int) -> str:
        """A message whose answer is one message of `count` deltas of `size` characters, as fast as it can."""

    @abstractmethod
    def decision_in(self, text: str) -> dict[str, Any]:
        """What TellDecision said: {"form": values}, {"dismiss": True}, or {"calls": {id: "approve" | {"reject": reason} | {"edit": arguments}}}."""
