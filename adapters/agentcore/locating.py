"""Which managed harness serves an agent."""

from typing import Protocol


class HarnessLocator(Protocol):
    """Knows the harness of an agent. What it tells is for requests to the service alone (I18)."""

    async def arn_for(self, agent_id: str) -> str:
        """The harness's ARN. Raises HarnessError if there is none and none can be had."""
        ...


class SharedHarness:
    """One harness for all agents of a profile."""

    def __init__(self, arn: str) -> None:
        self._arn = arn

    def __repr__(self) -> str:
        return "SharedHarness()"

    async def arn_for(self, agent_id: str) -> str:
        """The profile's, whoever asks."""
        return self._arn
