"""A conversation's native state, through the state facade and with the run's own capability token (thread state)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from adapters.sdk.cancellation import Deadline
from adapters.sdk.errors import HarnessError, PersistenceError
from harness.common.v1 import fence_pb2
from harness.event.v1 import event_pb2
from harness.state.v1 import thread_state_service_pb2 as state_pb2
from harness.state.v1 import thread_state_service_pb2_grpc as state_grpc

CHUNK_BYTES = 1024 * 1024
MAX_PART_BYTES = 8 * 1024 * 1024
MAX_PARTS = 64
# What one load may bring into this process.
MAX_HEAD_BYTES = 64 * 1024 * 1024
CALL_SECONDS = 30.0
STATUS_TRAILER = "grpc-status-details-bin"
STALE_LEASE = "STALE_LEASE"
TAKEOVER_SECONDS = 15.0
"""How long a call waits for the executor that is taking the run over: three times a lease's default."""
AWAY_SECONDS = 10.0
"""How long a call is made again while the facade is away, as when it is restarted."""
PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose server is gone, or goes. Every call may be made again: parts are written under a key."""

T = TypeVar("T")
Stub = Callable[[], "state_grpc.ThreadStateServiceStub"]


@dataclass(frozen=True, slots=True)
class Head:
    """The committed state: its revision, from 1, the codec it was written with, and its parts in order. A head that no run wrote
    parts for has an empty codec and none.
    """

    revision: int
    codec: str
    parts: tuple[bytes, ...]


class ExecutorView(Protocol):
    """Which executor a run has."""

    @property
    def generation(self) -> int:
        """Its run generation."""
        ...

    async def wait_for_another(self, generation: int, seconds: float) -> bool:
        """Whether an executor of another generation attached within the bound."""
        ...


@dataclass(frozen=True, slots=True)
class StateAccess:
    """What a run needs to reach its state: the facade's stub, the run's fence, its executor and its token. `others`: stubs of the facade's other
    replicas, which are as good.
    """

    stub: Stub
    fence: fence_pb2.Fence
    executor: ExecutorView
    token: str
    deadline: Deadline
    others: tuple[Stub, ...] = ()

    def elsewhere(self) -> "StateAccess":
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


class ThreadState:
    """The state of one run's conversation. Reads the last committed head; what is written is visible to nobody until the
    executor commits it, which it does from the references that the host puts into the run's last draft.
    """

    __slots__ = ("_access", "_codec", "_replace", "_written")

    def __init__(self, access: StateAccess | None) -> None:
        self._access = access
        self._codec = ""
        self._replace = False
        self._written: list[str] = []

    async def load_head(self) -> Head | None:
        """The committed head, or None. Raises PersistenceError, also when it is over 64 MiB."""
        access = self._require()
        return await _fenced(access, "load", _load)

    async def write_part(self, data: bytes, codec: str, *, key: str = "", replace: bool = False) -> str:
        """Writes one part, 8 MiB at most, 64 of them a run, and returns its reference. `codec` names and versions the
        encoding, `key` the part within the run (the same key again: the same reference). With `replace` this run's parts become
        the whole head; otherwise they are appended to it. Raises PersistenceError.
        """
        access = self._require()
        if len(data) > MAX_PART_BYTES or len(self._written) >= MAX_PARTS:
            raise PersistenceError("A run may write 64 parts of 8 MiB each.", code="state_too_large")
        key = key or f"part-{len(self._written) + 1}"

        async def write(access: StateAccess, fence: fence_pb2.Fence) -> state_pb2.WritePartsResponse:
            return await access.stub().WriteParts(
                _chunks(fence, data, codec, key),
                timeout=access.deadline.remaining(CALL_SECONDS),
                metadata=_bearer(access),
            )

        response = await _fenced(access, "save", write)
        if response.part_ref not in self._written:
            self._written.append(response.part_ref)
        self._replace = self._replace or replace
        return response.part_ref

    def pending_head(self) -> event_pb2.PendingHead | None:
        """What this run wrote, for its last draft; None if nothing. The host's."""
        if not self._written:
            return None
        return event_pb2.PendingHead(part_refs=self._written, replace=self._replace)

    def _require(self) -> StateAccess:
        if self._access is None:
            raise PersistenceError(
                "This run has no access to thread state.",
                code="state_facade_missing",
                diagnostic="no state facade or token",
            )
        return self._access


async def _fenced(access: StateAccess, what: str, call: Callable[[StateAccess, fence_pb2.Fence], Awaitable[T]]) -> T:
    """The answer. A call refused because the run is being taken over waits for the new executor and is made again: the work goes on (I10). So does it
    where the facade is away: the call is made again, at another replica if there is one, within a bound (I34).
    """
    may_repeat, tries, away_since = True, 0, 0.0
    clock = asyncio.get_running_loop().time
    while True:
        fence = access.current_fence()
        try:
            return await call(access, fence)
        except grpc.aio.AioRpcError as error:
            if error.code() in AWAY:
                away_since = away_since or clock()
                if clock() - away_since >= access.deadline.remaining(AWAY_SECONDS):
                    raise _failed(what, error) from None
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
                raise _failed(what, error) from None


def _is_being_taken_over(error: grpc.aio.AioRpcError) -> bool:
    """Whether nothing but the run's generation was too old: the facade says that such a call is worth repeating."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            information = error_details_pb2.ErrorInfo()
            found = any(detail.Unpack(information) for detail in status_pb2.Status.FromString(value).details)
            return found and information.reason == STALE_LEASE and information.metadata.get("retryable") == "true"
    return False


async def _load(access: StateAccess, fence: fence_pb2.Fence) -> Head | None:
    request = state_pb2.LoadHeadRequest(fence=fence)
    parts: list[bytearray] = []
    revision, codec, size = 0, "", 0
    call = access.stub().LoadHead(request, timeout=access.deadline.remaining(CALL_SECONDS), metadata=_bearer(access))
    async for response in call:
        revision, codec = response.revision, response.codec or codec
        if not response.codec:
            # No head, or one that no run has written parts for.
            break
        while len(parts) <= response.part_index:
            if len(parts) >= MAX_HEAD_BYTES // 1024:
                raise PersistenceError("The conversation's state has too many parts.", code="state_too_large")
            parts.append(bytearray())
        size += len(response.chunk)
        if size > MAX_HEAD_BYTES:
            raise PersistenceError("The conversation's state is too large to load.", code="state_too_large")
        parts[response.part_index] += response.chunk
    return Head(revision, codec, tuple(bytes(part) for part in parts)) if revision else None


async def _chunks(
    fence: fence_pb2.Fence, data: bytes, codec: str, key: str
) -> AsyncIterator[state_pb2.WritePartsRequest]:
    yield state_pb2.WritePartsRequest(fence=fence, codec=codec, idempotency_key=key, chunk=data[:CHUNK_BYTES])
    for start in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        yield state_pb2.WritePartsRequest(chunk=data[start : start + CHUNK_BYTES])


def _bearer(access: StateAccess) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {access.token}"),)


def _failed(what: str, error: grpc.aio.AioRpcError) -> HarnessError:
    away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return PersistenceError(
        f"The conversation's state could not be {'loaded' if what == 'load' else 'saved'}.",
        code=f"state_{what}_failed",
        retryable=away,
        diagnostic=f"gRPC status {error.code().name}",
    )


class FacadeChannels:
    """Channels to facades, one per address, shared by all runs of a process; at most 16, the longest unused is closed."""

    MAX_CHANNELS = 16

    def __init__(self) -> None:
        self._channels: dict[str, tuple[grpc.aio.Channel, state_grpc.ThreadStateServiceStub]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def state(self, address: str) -> "state_grpc.ThreadStateServiceStub":
        """The stub of the state facade at `unix:/path` or `host:port`."""
        entry = self._channels.pop(address, None)
        if entry is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            entry = (channel, state_grpc.ThreadStateServiceStub(channel))
        self._channels[address] = entry
        if len(self._channels) > self.MAX_CHANNELS:
            oldest, _ = self._channels.pop(next(iter(self._channels)))
            task = asyncio.get_running_loop().create_task(oldest.close(grace=CALL_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return entry[1]

    async def close(self) -> None:
        """Closes all channels; calls still open are cancelled."""
        channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            await channel.close(grace=None)


_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]
