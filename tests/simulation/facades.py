"""The facades as a simulated runtime calls them: the generated stubs' shape over the simulated network, raising what grpc raises."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from services.common.errors import HarnessError
from tests.simulation.network import Network, SimulatedPeer, copied, rpc_error


class FacadeChannels:
    """Stands in for the SDK's channels to facades: its stubs raise what grpc raises."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def state(self, address: str) -> StateStub:
        return StateStub(SimulatedPeer(self._network, address))

    def tools(self, address: str) -> ToolStub:
        return ToolStub(SimulatedPeer(self._network, address))

    def files(self, address: str) -> SimulatedPeer:
        # No simulated turn reads a file: a call would find no method.
        return SimulatedPeer(self._network, address)

    async def close(self) -> None:
        return


STATE: Final = "/harness.state.v1.ThreadStateService/"


class StateStub:
    """The thread-state facade as a runtime calls it."""

    def __init__(self, peer: SimulatedPeer) -> None:
        self._peer = peer

    async def WriteParts(self, requests: AsyncIterator[Any], *, timeout: float, metadata: Any) -> Any:
        messages = [message async for message in requests]
        try:
            return await self._peer.call(
                STATE + "WriteParts", Messages(messages), timeout=timeout, credential=_token(metadata)
            )
        except HarnessError as error:
            raise rpc_error(error) from None

    async def LoadHead(self, request: Any, *, timeout: float, metadata: Any) -> AsyncGenerator[Any, None]:
        try:
            async for message in self._peer.stream(
                STATE + "LoadHead", request, timeout=timeout, credential=_token(metadata)
            ):
                yield message
        except HarnessError as error:
            raise rpc_error(error) from None


TOOL: Final = "/harness.tool.v1.ToolBrokerService/"


class ToolStub:
    """The tool broker as a runtime calls it."""

    def __init__(self, peer: SimulatedPeer) -> None:
        self._peer = peer

    async def InvokeTool(self, request: Any, *, timeout: float, metadata: Any) -> Any:
        try:
            return await self._peer.call(TOOL + "InvokeTool", request, timeout=timeout, credential=_token(metadata))
        except HarnessError as error:
            raise rpc_error(error) from None


class Messages:
    """The messages of a client's stream, sent as one."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    def SerializeToString(self) -> list[Any]:
        return self._messages

    @classmethod
    def FromString(cls, messages: list[Any]) -> Messages:
        return cls([copied(message) for message in messages])

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop(0)


def _token(metadata: Any) -> str:
    return next(value for key, value in metadata if key == "authorization").removeprefix("Bearer ")
