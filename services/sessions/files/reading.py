"""A run's files as its runtime may read them (worker protocol, "Facades"; I28)."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from services.common.caller import Capability
from services.common.errors import not_found
from services.sessions.files.library import read_parts
from services.sessions.files.store import FileStore
from services.sessions.runtime_fence import Fence
from services.sessions.thread_state import ThreadState
from services.sessions.transfers import Transfers

AUDIENCE: Final = "files"


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A piece of a file, and of what file. `sha256` is empty but in the last."""

    offset: int
    chunk: bytes
    size: int
    sha256: str


class FileReading:
    """The facade's rules."""

    def __init__(self, store: FileStore, thread_state: ThreadState, transfers: Transfers) -> None:
        self._store = store
        self._thread_state = thread_state
        self._transfers = transfers

    async def read(
        self, capability: Capability, fence: Fence, file_id: str, offset: int
    ) -> AsyncGenerator[FilePiece, None]:
        """The content from an offset. Errors: `STALE_LEASE`, `not_found` for a file that the run does not name or that is gone, `capacity`."""
        binding = await self._thread_state.admitted(capability, fence)
        file = await self._store.file(file_id) if file_id in capability.file_ids else None
        # I28: only what the run names, and I2: only of the conversation's owner, whatever a token says. Its time may be over: the run keeps it.
        if file is None or file["owner_id"] != binding["owner_id"]:
            raise not_found("file")
        size, digest = file["size"], file["sha256"]
        if offset >= size:
            yield FilePiece(offset, b"", size, digest)
            return
        with self._transfers.one(fence.binding_id):
            async for content in read_parts(self._store, file, offset):
                following = offset + len(content)
                yield FilePiece(offset, content, size, digest if following >= size else "")
                offset = following
