"""`harness.files.v1.FileService`, played by the kit: each run's token opens the files that the run names, and a case may let one be gone or damaged."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from conformance.plane.grants import Grants
from conformance.plane.refusals import refuse
from harness.files.v1 import file_service_pb2 as pb2
from harness.files.v1 import file_service_pb2_grpc
from harness.runtime.v1 import runtime_pb2

AUDIENCE = "files"
CHUNK_BYTES = 512 * 1024
# How a facade refuses in the place of a file: its owner deleted it or its time is over, the store is away for good, the token is not taken.
GONE = (grpc.StatusCode.NOT_FOUND, "not_found")
BROKEN = (grpc.StatusCode.DATA_LOSS, "persistence_failed")
CLOSED = (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
UNKNOWN_FILE = "a file that the run does not name"


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file as its owner uploaded it, and what becomes of a read: `refused` with this status and reason in these words, or `damaged`, another
    content than was uploaded under the digest of the true one.
    """

    file_id: str
    name: str
    media_type: str
    content: bytes
    refused: tuple[grpc.StatusCode, str] | None = None
    words: str = "The file cannot be read."
    damaged: bool = False
    # Once, a read ends after so many bytes, as when the facade is restarted; zero: none does.
    cut_after: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the content, hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    def ref(self) -> runtime_pb2.FileRef:
        """What the run says of it."""
        return runtime_pb2.FileRef(
            file_id=self.file_id, name=self.name, media_type=self.media_type, size=len(self.content)
        )


@dataclass(slots=True)
class Read:
    """One ReadFile as it came; `fault`: what was wrong with it."""

    file_id: str
    offset: int
    fault: str = ""


@dataclass
class RunFiles:
    """The files that one run names, and what was read of them."""

    files: dict[str, GivenFile]
    reads: list[Read] = field(default_factory=list[Read])
    cut: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, files: Sequence[GivenFile]) -> "RunFiles":
        """Of a run that names these."""
        return cls({file.file_id: file for file in files})


class FileServicer(file_service_pb2_grpc.FileServiceServicer):
    """Files of whatever run the caller's token was made for."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    async def ReadFile(self, request: pb2.ReadFileRequest, context: Any) -> AsyncIterator[pb2.ReadFileResponse]:
        """The content from an offset, the digest of the whole with the last piece."""
        named = await self._admit(request, context)
        read = Read(request.file_id, request.offset)
        named.reads.append(read)
        file = named.files.get(request.file_id)
        if file is None:
            read.fault = UNKNOWN_FILE
            await refuse(context, *GONE, "There is no such file.")
        if file.refused is not None:
            await refuse(context, *file.refused, file.words)
        content = file.content[:-1] + b"?" if file.damaged else file.content
        size, offset = len(content), request.offset
        if offset >= size:
            yield pb2.ReadFileResponse(offset=offset, size=size, sha256=file.digest)
            return
        while offset < size:
            if file.cut_after and offset >= file.cut_after and file.file_id not in named.cut:
                named.cut.add(file.file_id)
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "unavailable", "The facade goes.")
            chunk = content[offset : offset + CHUNK_BYTES]
            following = offset + len(chunk)
            digest = file.digest if following >= size else ""
            yield pb2.ReadFileResponse(offset=offset, chunk=chunk, size=size, sha256=digest)
            offset = following

    async def _admit(self, request: pb2.ReadFileRequest, context: Any) -> RunFiles:
        grant, fault = self._grants.admit(AUDIENCE, "ReadFile", request.fence, context)
        if grant is None:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "A token of the run is needed.")
        if fault:
            await refuse(
                context, grpc.StatusCode.FAILED_PRECONDITION, "STALE_LEASE", f"The call does not fit: {fault}."
            )
        return grant.behind
