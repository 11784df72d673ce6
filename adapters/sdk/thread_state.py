"""A conversation's native state, through the state facade and with the run's own capability token (thread state)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import grpc
import grpc.aio

from adapters.sdk.errors import HarnessError, PersistenceError
from adapters.sdk.facade import FacadeAccess, fenced
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
StateAccess = FacadeAccess[state_grpc.ThreadStateServiceStub]
"""What a run needs to reach its state."""


@dataclass(frozen=True, slots=True)
class Head:
    """The committed state: its revision, from 1, the codec it was written with, and its parts in order. A head that no run wrote
    parts for has an empty codec and none.
    """

    revision: int
    codec: str
    parts: tuple[bytes, ...]


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
        return await fenced(access, _load, partial(_failed, "load"))

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
                metadata=access.bearer(),
            )

        response = await fenced(access, write, partial(_failed, "save"))
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


async def _load(access: StateAccess, fence: fence_pb2.Fence) -> Head | None:
    request = state_pb2.LoadHeadRequest(fence=fence)
    parts: list[bytearray] = []
    revision, codec, size = 0, "", 0
    call = access.stub().LoadHead(request, timeout=access.deadline.remaining(CALL_SECONDS), metadata=access.bearer())
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


def _failed(what: str, error: grpc.aio.AioRpcError) -> HarnessError:
    away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return PersistenceError(
        f"The conversation's state could not be {'loaded' if what == 'load' else 'saved'}.",
        code=f"state_{what}_failed",
        retryable=away,
        diagnostic=f"gRPC status {error.code().name}",
    )
