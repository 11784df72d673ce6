"""The facades of the control plane that a run may call, with its own capability token (worker protocol, Facades)."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any as Json
from typing import TypeVar

from betterproto_contracts.google.protobuf import Any, Struct, Value
from betterproto_contracts.google.rpc import ErrorInfo
from betterproto_contracts.harness.common.v1 import ErrorCategory, Fence
from betterproto_contracts.harness.event.v1 import PendingHead, ToolApproval, ToolCompleted, ToolError, ToolOutcome
from betterproto_contracts.harness.runtime.v1 import RuntimeContext, TurnInput
from betterproto_contracts.harness.state.v1 import LoadHeadRequest, ThreadStateServiceStub, WritePartsRequest
from betterproto_contracts.harness.tool.v1 import InvokeToolRequest, ToolBrokerServiceStub
from grpclib import GRPCError
from grpclib.client import Channel
from grpclib.const import Status as Code
from grpclib.exceptions import StreamTerminatedError

from adapters.betterproto.errors import Details, Failure, wrong
from adapters.betterproto.runs import Run

CALL_SECONDS = 30.0
# How long a call waits for the executor that is taking the run over.
TAKEOVER_SECONDS = 15.0
# How long a call is made again while the facade of this audience is away.
AWAY_SECONDS = {"state": 10.0, "tool": 30.0}
AWAY_PAUSE_SECONDS = 0.1
MAX_CHANNELS = 16
MAX_HEAD_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
T = TypeVar("T")


class Channels:
    """Channels of the process, one per address; the longest unused is closed when there are too many."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    def to(self, address: str) -> Channel:
        """The channel to `unix:/path` or `host:port`."""
        channel = self._channels.pop(address, None)
        if channel is None:
            details = Details()
            if address.startswith("unix:"):
                channel = Channel(path=address.removeprefix("unix:"), status_details_codec=details)
            else:
                host, _, port = address.rpartition(":")
                channel = Channel(host.strip("[]"), int(port), status_details_codec=details)
        self._channels[address] = channel
        if len(self._channels) > MAX_CHANNELS:
            self._channels.pop(next(iter(self._channels))).close()
        return channel

    def close(self) -> None:
        """Closes all; calls that are open end."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


class Facade:
    """One facade as one run may use it: `audience` says which. Calls carry the fence of the run's executor of the moment."""

    def __init__(
        self, audience: str, run: Run, fence: Fence, turn: TurnInput, context: RuntimeContext, channels: Channels
    ) -> None:
        self._addresses = [facade.address for facade in context.facades if facade.audience == audience]
        self._token = next((token.value for token in turn.tokens if token.audience == audience), "")
        self._run, self._fence, self._channels = run, fence, channels
        self._away_seconds = AWAY_SECONDS[audience]

    @property
    def connected(self) -> bool:
        """Whether there is an address and a token."""
        return bool(self._addresses and self._token)

    async def call(
        self, made: Callable[[Channel, Fence, dict[str, str]], Awaitable[T]], seconds: float | None = CALL_SECONDS
    ) -> T:
        """What `made` answers within `seconds`; None: until the run ends. It is made again while the run is being taken over or the facade is away."""
        tries, away_until = 0, 0.0
        while True:
            generation = self._run.generation
            channel = self._channels.to(self._addresses[tries % len(self._addresses)])
            fence = dataclasses.replace(self._fence, run_generation=generation)
            try:
                async with asyncio.timeout(seconds):
                    return await made(channel, fence, {"authorization": f"Bearer {self._token}"})
            except (OSError, StreamTerminatedError, GRPCError) as error:
                if not _is_away(error):
                    stale = isinstance(error, GRPCError) and _is_being_taken_over(error)
                    if stale and await self._run.newer_executor(generation, TAKEOVER_SECONDS):
                        continue
                    raise
                away_until = away_until or time.monotonic() + self._away_seconds
                if time.monotonic() > away_until:
                    raise
            tries += 1
            await asyncio.sleep(AWAY_PAUSE_SECONDS)


class ThreadState:
    """The native state of a run's conversation: reads the committed head, writes what the executor commits with the run's last draft."""

    def __init__(self, facade: Facade) -> None:
        self._facade = facade
        self._written: dict[str, str] = {}

    async def load(self) -> tuple[int, str, bytes]:
        """Revision, codec and last part of the head; revision 0: there is none."""
        self._require()

        async def load(channel: Channel, fence: Fence, metadata: dict[str, str]) -> tuple[int, str, bytes]:
            revision, codec, last, size, index = 0, "", bytearray(), 0, 0
            stub = ThreadStateServiceStub(channel)
            async for response in stub.load_head(LoadHeadRequest(fence=fence), metadata=metadata):
                revision, codec, size = response.revision, response.codec or codec, size + len(response.chunk)
                if size > MAX_HEAD_BYTES:
                    raise _lost("state_too_large", "The conversation's state is too large to load.")
                if response.part_index != index:
                    last.clear()
                last += response.chunk
                index = response.part_index
            return revision, codec, bytes(last)

        return await self._call(load, "state_load_failed", "The conversation's state could not be loaded.")

    async def write(self, data: bytes, codec: str, key: str) -> None:
        """Writes one part, named by `key` within the run."""
        self._require()

        async def chunks(fence: Fence) -> AsyncIterator[WritePartsRequest]:
            yield WritePartsRequest(fence=fence, codec=codec, idempotency_key=key, chunk=data[:CHUNK_BYTES])
            for start in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
                yield WritePartsRequest(chunk=data[start : start + CHUNK_BYTES])

        async def write(channel: Channel, fence: Fence, metadata: dict[str, str]) -> str:
            response = await ThreadStateServiceStub(channel).write_parts(chunks(fence), metadata=metadata)
            return response.part_ref

        said = "The conversation's state could not be saved."
        self._written[key] = await self._call(write, "state_save_failed", said)

    def pending_head(self) -> PendingHead | None:
        """What this run wrote, for its last draft: it replaces what was there."""
        return PendingHead(part_refs=list(self._written.values()), replace=True) if self._written else None

    def _require(self) -> None:
        if not self._facade.connected:
            raise _lost("state_facade_missing", "This run has no access to thread state.")

    async def _call(self, made: Callable[..., Awaitable[T]], code: str, message: str) -> T:
        try:
            return await self._facade.call(made)
        except GRPCError as error:
            away = error.status in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
            raise _lost(code, message, retryable=away) from None
        except (OSError, StreamTerminatedError):
            raise _lost(code, message, retryable=True) from None


class ToolBroker:
    """The portable tools of the agent, as one run may call them."""

    def __init__(self, facade: Facade, context: RuntimeContext) -> None:
        self._facade = facade
        # A model may use either name; the mapping is the control plane's.
        self._ids = {tool.provider_name: tool.tool_id for tool in context.tools} | {
            t.tool_id: t.tool_id for t in context.tools
        }

    def tool_id(self, name: str) -> str:
        """The stable id behind a name. Unknown names pass: it is the broker who refuses."""
        if not self._facade.connected:
            raise wrong("tools_unavailable", "This run has no access to portable tools.")
        return self._ids.get(name, name)

    async def invoke(self, call_id: str, tool_id: str, arguments: dict[str, Json]) -> ToolCompleted | ToolApproval:
        """How the call ended, or what a person is to be asked. A refusal of the broker is an error of the call."""

        async def invoke(
            channel: Channel, fence: Fence, metadata: dict[str, str]
        ) -> ToolCompleted | ToolApproval | None:
            request = InvokeToolRequest(
                fence=fence, tool_call_id=call_id, tool_id=tool_id, arguments=Struct.from_dict(arguments)
            )
            response = await ToolBrokerServiceStub(channel).invoke_tool(request, metadata=metadata)
            return response.completed or response.approval_required

        try:
            answer = await self._facade.call(invoke, None)
        except GRPCError as error:
            info = _info(error)
            if info is not None and info.reason == "STALE_LEASE":
                stale = "Another runtime or executor has taken the run."
                raise Failure(ErrorCategory.AUTHORIZATION, "stale_lease", stale) from None
            answer = _failed(call_id, (info.reason if info else error.status.name).lower())
        except (OSError, StreamTerminatedError):
            answer = _failed(call_id, "tool_broker_away")
        if answer is None:
            raise Failure(ErrorCategory.PROTOCOL, "tool_answer_missing", "The tool broker's answer says nothing.")
        return answer


def value_of(result: Json) -> Value | None:
    """A JSON value as the wire has it; None stays absent."""
    return None if result is None else Value.from_dict(result)


def _is_away(error: Exception) -> bool:
    if not isinstance(error, GRPCError):
        return True  # the connection broke, or nothing came in time
    # With an ErrorInfo the facade itself has answered, and says whether to come again; without one nobody is there.
    info = _info(error)
    away = error.status in (Code.UNAVAILABLE, Code.CANCELLED)
    return away and (info is None or info.metadata.get("retryable") == "true")


def _is_being_taken_over(error: GRPCError) -> bool:
    info = _info(error)
    return info is not None and info.reason == "STALE_LEASE" and info.metadata.get("retryable") == "true"


def _info(error: GRPCError) -> ErrorInfo | None:
    details: list[Any] = error.details or []
    return next((ErrorInfo.parse(detail.value) for detail in details if detail.type_url == _ERROR_INFO), None)


def _lost(code: str, message: str, *, retryable: bool = False) -> Failure:
    return Failure(ErrorCategory.PERSISTENCE, code, message, retryable=retryable)


def _failed(call_id: str, code: str) -> ToolCompleted:
    error = ToolError(code=code[:64], message="The tool broker did not do the call.")
    return ToolCompleted(tool_call_id=call_id, outcome=ToolOutcome.ERROR, error=error)
