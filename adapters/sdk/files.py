"""The files of a turn, through the file facade and with the run's own capability token (worker protocol, facades).

    for file in turn.files:
        data = await turn.files_access.read(file)

A run reads the files that it names and no others. What `read` returns is whole, and is what its owner uploaded: size and digest were compared.
"""

import hashlib
from typing import Final

import grpc
import grpc.aio

from adapters.sdk.errors import AuthorizationError, ConfigurationError, HarnessError, PersistenceError
from adapters.sdk.facade import STALE_LEASE, FacadeAccess, fenced, information_of, status_of
from harness.common.v1 import fence_pb2
from harness.files.v1 import file_service_pb2 as files_pb2
from harness.files.v1 import file_service_pb2_grpc as files_grpc
from harness.runtime.v1 import runtime_pb2

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""What one read may bring into this process, whatever the mesh lets its users upload."""
CALL_SECONDS: Final = 60.0
FileAccess = FacadeAccess[files_grpc.FileServiceStub]
"""What a run needs to reach its files."""


class Files:
    """Reads the files that one run names. Any number of reads may go on at once; the control plane bounds how many of a conversation it serves."""

    __slots__ = ("_access",)

    def __init__(self, access: FileAccess | None) -> None:
        self._access = access

    async def read(self, file: runtime_pb2.FileRef, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """The content of one of `turn.files`. A read that is cut off goes on where it was.

        Raises ConfigurationError: `file_too_large` for one over `max_bytes` (nothing is read then), `file_not_found` for one that its owner deleted
        or that the run does not name, `files_unavailable` without access to files. PersistenceError `file_read_failed` when it cannot be read now, or
        when what came is not what was uploaded. AuthorizationError once the run is not this runtime's any more.
        """
        if self._access is None:
            raise ConfigurationError(
                "This run has no access to files.",
                code="files_unavailable",
                diagnostic="no file facade or token",
            )
        bound = min(max_bytes, MAX_FILE_BYTES)
        if file.size > bound:
            raise _too_large(bound)
        content = _Content(file.file_id, file.size, bound)
        await fenced(self._access, content.receive, _failed)
        return content.checked()


class _Content:
    """What has come of a file. `size` as the turn says it, zero where it does not."""

    def __init__(self, file_id: str, size: int, bound: int) -> None:
        self._file_id = file_id
        self._size = size
        self._bound = bound
        self._received = bytearray()
        self._digest = ""

    async def receive(self, access: FileAccess, fence: fence_pb2.Fence) -> None:
        """Reads on from what has come already."""
        request = files_pb2.ReadFileRequest(fence=fence, file_id=self._file_id, offset=len(self._received))
        call = access.stub().ReadFile(
            request, timeout=access.deadline.remaining(CALL_SECONDS), metadata=access.bearer()
        )
        try:
            async for response in call:
                if response.offset != len(self._received):
                    raise _damaged("a piece is missing")
                self._received += response.chunk
                # I35: a facade that sends without end is not believed.
                if len(self._received) > self._bound:
                    raise _too_large(self._bound)
                self._digest = response.sha256
        finally:
            call.cancel()

    def checked(self) -> bytes:
        """All of it. Raises PersistenceError where it is not what was uploaded."""
        if self._size and len(self._received) != self._size:
            raise _damaged("its size differs")
        data = bytes(self._received)
        if hashlib.sha256(data).hexdigest() != self._digest:
            raise _damaged("its digest differs" if self._digest else "it has no end")
        return data


def _too_large(bound: int) -> HarnessError:
    return ConfigurationError(
        f"A file is larger than the {bound} bytes that may be read of one.", code="file_too_large"
    )


def _damaged(why: str) -> HarnessError:
    return PersistenceError("A file could not be read whole.", code="file_read_failed", diagnostic=why)


def _failed(error: grpc.aio.AioRpcError) -> HarnessError:
    code = error.code()
    if information_of(status_of(error)).reason == STALE_LEASE:
        return AuthorizationError(
            "Another runtime or run has taken the conversation over.", code="stale_lease", diagnostic="file facade"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return ConfigurationError("A file of this turn is not there any more.", code="file_not_found")
    return PersistenceError(
        "A file of this turn could not be read.",
        code="file_read_failed",
        retryable=code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
        diagnostic=f"gRPC status {code.name}",
    )
