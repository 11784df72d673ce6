"""A team's own tools, in any language: `harness.tool.v1.ToolProviderService`."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
from google.protobuf import json_format
from pydantic import SecretStr

from harness.event.v1 import payload_pb2
from harness.tool.v1 import tool_provider_service_pb2, tool_provider_service_pb2_grpc
from services.common.channels import Peer, connect
from services.common.errors import GrpcCode, HarnessError
from services.common.status import from_rpc_error
from services.runs.tools.arguments import as_json, plain_value
from services.runs.tools.providers.port import ProviderCall, ProviderFailed, too_large
from services.runs.tools.record import Ended, Outcome

MAX_PEERS: Final = 64
"""Channels kept open; idle ones are closed first, ones in use never (I35)."""
_NOT_REACHED: Final = frozenset(
    {
        GrpcCode.UNAUTHENTICATED,
        GrpcCode.PERMISSION_DENIED,
        GrpcCode.UNIMPLEMENTED,
        GrpcCode.INVALID_ARGUMENT,
        GrpcCode.NOT_FOUND,
    }
)
"""By these a provider says that it has not begun."""
_TOO_LARGE: Final = "message larger than max"
"""What grpc says of an answer that it does not read: a full provider has the same status, and there nothing has happened."""
_CODE: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(slots=True)
class _Dialled:
    peer: Peer
    stub: tool_provider_service_pb2_grpc.ToolProviderServiceStub = field(init=False)
    users: int = 0

    def __post_init__(self) -> None:
        self.stub = tool_provider_service_pb2_grpc.ToolProviderServiceStub(self.peer.channel)


class GrpcProviders:
    """Providers by address and credential."""

    def __init__(self) -> None:
        self._dialled: OrderedDict[tuple[str, str], _Dialled] = OrderedDict()

    def at(self, address: str, token: str) -> GrpcProvider:
        """The provider at an address, called with the credential the operator gave it, or with none."""
        return GrpcProvider(self, address, token)

    async def reach(self, address: str, token: str) -> None:
        """Returns once there is a connection. Errors: `ProviderFailed`: none can be had now, and no call has left."""
        dialled = self._use(address, token)
        try:
            await _connected(dialled.peer.channel)
        finally:
            await self._leave(dialled)

    async def invoke(self, address: str, token: str, call: ProviderCall) -> Ended:
        """One try. Errors: `ProviderFailed`."""
        dialled = self._use(address, token)
        try:
            response: object = await dialled.stub.InvokeProviderTool(
                _request(call), timeout=call.timeout_seconds, metadata=dialled.peer.metadata()
            )
        except grpc.aio.AioRpcError as error:
            if _TOO_LARGE in (error.details() or ""):
                return too_large(call.max_result_bytes)
            raise _failed(from_rpc_error(error)) from None
        finally:
            await self._leave(dialled)
        return _ended(response)

    async def close(self) -> None:
        """Close every channel."""
        while self._dialled:
            _, dialled = self._dialled.popitem()
            await dialled.peer.close()

    def _use(self, address: str, token: str) -> _Dialled:
        key = (address, token)
        dialled = self._dialled.get(key)
        if dialled is None:
            # Tries are the broker's to decide: the channel repeats nothing.
            dialled = self._dialled[key] = _Dialled(connect(address, SecretStr(token) if token else None))
        self._dialled.move_to_end(key)
        dialled.users += 1
        return dialled

    async def _leave(self, dialled: _Dialled) -> None:
        dialled.users -= 1
        if len(self._dialled) <= MAX_PEERS:
            return
        idle = next((key for key, other in self._dialled.items() if not other.users), None)
        if idle is not None:
            await self._dialled.pop(idle).peer.close()


class GrpcProvider:
    """One of them."""

    def __init__(self, providers: GrpcProviders, address: str, token: str) -> None:
        self._providers = providers
        self._address = address
        self._token = token

    async def reach(self) -> None:
        """See `ToolProvider`."""
        await self._providers.reach(self._address, self._token)

    async def invoke(self, call: ProviderCall) -> Ended:
        """See `ToolProvider`."""
        return await self._providers.invoke(self._address, self._token, call)


async def _connected(channel: grpc.aio.Channel) -> None:
    """What the connection itself says, not what a status says of it: that text could be one which the provider passes on from somewhere behind it."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise ProviderFailed(
                "tool_unavailable", "The tool's provider cannot be reached.", passing=True, reached=False
            )
        await channel.wait_for_state_change(state)


def _request(call: ProviderCall) -> tool_provider_service_pb2.InvokeProviderToolRequest:
    request = tool_provider_service_pb2.InvokeProviderToolRequest(
        tool_id=call.tool_id,
        idempotency_key=call.idempotency_key,
        user_id=call.user_id,
        traceparent=call.traceparent,
    )
    json_format.ParseDict(dict(call.arguments), request.arguments)
    json_format.ParseDict(dict(call.settings), request.settings)
    return request


def _failed(error: HarnessError) -> ProviderFailed:
    """The provider's status in our own words: what it wrote may hold anything (I22)."""
    code = error.grpc_code
    if code is GrpcCode.RESOURCE_EXHAUSTED:
        return ProviderFailed("tool_busy", "The tool's provider has no room now.", passing=True, reached=False)
    if code in (GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED, GrpcCode.CANCELLED):
        return ProviderFailed("tool_unavailable", "The tool's provider did not answer.", passing=True, reached=True)
    return ProviderFailed(
        "tool_failed",
        f"The tool's provider failed ({code.name}).",
        passing=False,
        reached=code not in _NOT_REACHED,
    )


def _ended(response: object) -> Ended:
    if not isinstance(response, tool_provider_service_pb2.InvokeProviderToolResponse):
        raise _broken()  # nothing that can be read: grpc makes no error of it
    if response.outcome == payload_pb2.TOOL_OUTCOME_ERROR:
        error = response.error
        code = error.code if _CODE.fullmatch(error.code) else "tool_failed"
        return Ended.failed(code, error.message, retryable=error.retryable)
    if response.outcome != payload_pb2.TOOL_OUTCOME_SUCCESS:
        raise _broken()
    if not response.HasField("result"):
        return Ended(Outcome.SUCCESS)
    try:
        return Ended(Outcome.SUCCESS, as_json(plain_value(response.result)))
    except ValueError:
        raise _broken() from None


def _broken() -> ProviderFailed:
    return ProviderFailed(
        "tool_protocol",
        "The tool's provider broke its contract: what it did is not known.",
        passing=False,
        reached=True,
    )
