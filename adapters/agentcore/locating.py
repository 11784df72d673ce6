"""Which managed harness serves an agent."""

from typing import Protocol


class HarnessLocator(Protocol):
    """Knows the harness of an agent. What it tells is for requests to the service alone (I18)."""

    async def arn_for(self, agent_id: str) -> str:
        """The harness's ARN; it is made if there is none. Raises HarnessError if none can be had."""
        ...

    async def known_arn(self, agent_id: str) -> str:
        """The ARN of the harness that is there; empty: there is none, and none is made. Raises HarnessError."""
        ...

    def forget(self, agent_id: str) -> None:
        """The service said that there is no such harness: the next one who asks has it looked for."""
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

    async def known_arn(self, agent_id: str) -> str:
        """The profile's, whoever asks."""
        return self._arn

    def forget(self, agent_id: str) -> None:
        """Nothing: the profile names it."""
