"""Calls to the facades of the control plane with the run's own capability token: fenced, made again where that is safe, bounded (worker protocol)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from adapters.sdk.cancellation import Deadline
from adapters.sdk.errors import HarnessError
from harness.common.v1 import fence_pb2
from harness.files.v1 import file_service_pb2_grpc as files_grpc
from harness.state.v1 import thread_state_service_pb2_grpc as state_grpc
from harness.tool.v1 import tool_broker_service_pb2_grpc as tool_grpc

STATUS_TRAILER = "grpc-status-details-bin"
STALE_LEASE = "STALE_LEASE"
TAKEOVER_SECONDS = 15.0
"""How long a call waits for the executor that is taking the run over: three times a lease's default."""
AWAY_SECONDS = 10.0
"""How long a call is made again while the facade is away, as when it is restarted."""
PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose server is gone, or goes (see `_is_away`). Every call may be made again: its effect has a key."""
CLOSE_SECONDS = 30.0
"""How long calls of a channel that was given up may still take."""

S = TypeVar("S")
T = TypeVar("T")


class ExecutorView(Protocol):
    """Which executor a run has."""

    @property
    def generation(self) -> int:
        """Its run generation."""
        ...

    async def wait_for_another(self, generation: int, seconds: float) -> bool:
        """Whether an executor of another generation attached within the bound."""
        ...


@dataclass(frozen=True)
class FacadeAccess(Generic[S]):
    """What a run needs to reach one facade: the facade's stub, the run's fence, its executor and its token. `others`: stubs of the facade's
    other replicas, which are as good.
    """

    stub: Callable[[], S]
    fence: fence_pb2.Fence
    executor: ExecutorView
    token: str = field(repr=False)
    deadline: Deadline
    others: tuple[Callable[[], S], ...] = ()

    def elsewhere(self) -> "FacadeAccess[S]":
        """The same through the next replica."""
        return replace(self, stub=self.others[0], others=(*self.others[1:], self.stub)) if self.others else self

    def current_fence(self) -> fence_pb2.Fence:
        """The fence with the generation of the executor that is known now."""
        if self.fence.run_generation == self.executor.generation:
            return self.fence
        fence = fence_pb2.Fence()
        fence.CopyFrom(self.fence)
        fence.run_generation = self.executor.generation
        return fence

    def bearer(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call."""
        return (("authorization", f"Bearer {self.token}"),)


async def fenced(
    access: FacadeAccess[S],
    call: Callable[[FacadeAccess[S], fence_pb2.Fence], Awaitable[T]],
    failed: Callable[[grpc.aio.AioRpcError], HarnessError],
    *,
    away_seconds: float | None = None,
) -> T:
    """The answer. A call refused because the run is being taken over waits for the new executor and is made again: the work goes on (I10). So does it
    where the facade is away: the call is made again, at another replica if there is one, until `away_seconds` (10) after it was found away first
    (I34). Raises what `failed` makes of any other status.
    """
    may_repeat, tries, away_since = True, 0, 0.0
    clock = asyncio.get_running_loop().time
    bound = AWAY_SECONDS if away_seconds is None else away_seconds
    while True:
        fence = access.current_fence()
        try:
            return await call(access, fence)
        except grpc.aio.AioRpcError as error:
            if _is_away(error):
                away_since = away_since or clock()
                if clock() - away_since >= access.deadline.remaining(bound):
                    raise failed(error) from None
                access = access.elsewhere()
                await asyncio.sleep(PAUSES[min(tries // (len(access.others) + 1), len(PAUSES) - 1)])
                tries += 1
                continue
            if may_repeat and error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata():
                # Refused while it still wrote, a call can end here in the failed write instead of in the refusal.
                may_repeat = False
                continue
            patience = access.deadline.remaining(TAKEOVER_SECONDS)
            if not _is_being_taken_over(error) or not await access.executor.wait_for_another(
                fence.run_generation, patience
            ):
                raise failed(error) from None


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """The refusal that the facade itself wrote, None where it wrote none."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None


def information_of(status: status_pb2.Status | None) -> error_details_pb2.ErrorInfo:
    """Its reason and what it says of retries; empty where there is none."""
    information = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(information):
            break
    return information


def _is_away(error: grpc.aio.AioRpcError) -> bool:
    """Whether the facade is gone, or goes, or cannot answer now and says that it may be asked again. One that is there and refuses is not away."""
    if error.code() not in AWAY:
        return False
    information = information_of(status_of(error))
    return not information.reason or information.metadata.get("retryable") == "true"


def _is_being_taken_over(error: grpc.aio.AioRpcError) -> bool:
    """Whether nothing but the run's generation was too old: the facade says that such a call is worth repeating."""
    information = information_of(status_of(error))
    return information.reason == STALE_LEASE and information.metadata.get("retryable") == "true"


class FacadeChannels:
    """Channels to facades, one per address, shared by all runs of a process; at most 16, the longest unused is closed."""

    MAX_CHANNELS = 16

    def __init__(self) -> None:
        self._channels: dict[str, tuple[grpc.aio.Channel, dict[object, object]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def state(self, address: str) -> "state_grpc.ThreadStateServiceStub":
        """The stub of the state facade at `unix:/path` or `host:port`."""
        return self._stub(address, state_grpc.ThreadStateServiceStub)

    def tools(self, address: str) -> "tool_grpc.ToolBrokerServiceStub":
        """The stub of the tool facade at `unix:/path` or `host:port`."""
        return self._stub(address, tool_grpc.ToolBrokerServiceStub)

    def files(self, address: str) -> "files_grpc.FileServiceStub":
        """The stub of the file facade at `unix:/path` or `host:port`."""
        return self._stub(address, files_grpc.FileServiceStub)

    def _stub(self, address: str, make: Callable[[Any], S]) -> S:
        entry = self._channels.pop(address, None)
        if entry is None:
            entry = (grpc.aio.insecure_channel(address, options=_OPTIONS), dict[object, object]())
        self._channels[address] = entry
        if len(self._channels) > self.MAX_CHANNELS:
            oldest, _ = self._channels.pop(next(iter(self._channels)))
            task = asyncio.get_running_loop().create_task(oldest.close(grace=CLOSE_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        channel, stubs = entry
        if make not in stubs:
            stubs[make] = make(channel)
        return cast("S", stubs[make])

    async def close(self) -> None:
        """Closes all channels; calls still open are cancelled."""
        channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            await channel.close(grace=None)


_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # So long an attempt to connect may take: a control plane that is slow to answer on a loaded machine must be reached all the same (I34).
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]
