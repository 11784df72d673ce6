"""Calls of files, as the gateway, the runs service and a runtime make them."""

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from harness.common.v1 import fence_pb2
from harness.files.v1 import file_library_service_pb2 as library
from harness.files.v1 import file_library_service_pb2_grpc as library_grpc
from harness.files.v1 import file_pb2
from harness.files.v1 import file_service_pb2 as files
from harness.files.v1 import file_service_pb2_grpc as files_grpc
from services.common.ids import Identity
from tests.sessions.processes import IDENTITY_KEY, SUBJECT, Client, token_of

TEXT = "text/plain"
CHUNK = 1 << 20


def owner_of(subject: str) -> str:
    """The digest that stands for a subject."""
    return Identity(IDENTITY_KEY.encode(), "local").owner_digest(subject)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FileClient:
    """Calls one process. Its subject is alone with its files unless one is given."""

    _numbers = itertools.count(1)

    def __init__(self, client: Client, subject: str = "") -> None:
        self.client = client
        self.subject = subject or f"{SUBJECT}-{time.time_ns()}-{next(self._numbers)}"
        self._library: Any = library_grpc.FileLibraryServiceStub(client.peer.channel)
        self._files: Any = files_grpc.FileServiceStub(client.worker.channel)

    async def upload(
        self, content: bytes, name: str = "notes.txt", media_type: str = TEXT, *, chunk: int = CHUNK, **more: Any
    ) -> file_pb2.File:
        pieces = [content[start : start + chunk] for start in range(0, len(content), chunk)] or [b""]
        first = library.UploadFileRequest(name=name, media_type=media_type, chunk=pieces[0], **more)
        messages = [first, *(library.UploadFileRequest(chunk=piece) for piece in pieces[1:])]
        messages[-1].complete = True
        return await self.send(_stream(messages))

    async def send(self, messages: AsyncIterator[library.UploadFileRequest]) -> file_pb2.File:
        answer = await self.client.peer.call(self._library.UploadFile, messages, subject=self.subject, timeout=60)
        return answer.file

    async def get(self, file_id: str) -> file_pb2.File:
        request = library.GetFileRequest(file_id=file_id)
        return (await self.client.peer.call(self._library.GetFile, request, subject=self.subject, timeout=60)).file

    async def delete(self, file_id: str) -> None:
        request = library.DeleteFileRequest(file_id=file_id)
        await self.client.peer.call(self._library.DeleteFile, request, subject=self.subject, timeout=60)

    async def download(self, file_id: str) -> bytes:
        request = library.DownloadFileRequest(file_id=file_id)
        answers = self.client.peer.stream(self._library.DownloadFile, request, subject=self.subject, timeout=60)
        async with aclosing(answers):
            return b"".join([answer.chunk async for answer in answers])

    async def page(self, size: int = 0, token: str = "") -> tuple[list[str], str]:
        request = library.ListFilesRequest(page_size=size, page_token=token)
        answer = await self.client.peer.call(self._library.ListFiles, request, subject=self.subject, timeout=60)
        return [file.file_id for file in answer.files], answer.next_page_token

    async def resolve(self, *file_ids: str, keep_seconds: float | None = None) -> dict[str, file_pb2.File]:
        request = library.ResolveFilesRequest(owner_id=owner_of(self.subject), file_ids=file_ids)
        if keep_seconds is not None:
            request.keep_until.FromMilliseconds(int((time.time() + keep_seconds) * 1000))
        answer = await self.client.peer.call(self._library.ResolveFiles, request, timeout=60)
        return {file.file_id: file for file in answer.files}

    async def read(
        self, fence: fence_pb2.Fence, file_id: str, *, offset: int = 0, token: str | None = None
    ) -> tuple[bytes, str]:
        """Content from an offset, and the digest that came with it."""
        request = files.ReadFileRequest(fence=fence, file_id=file_id, offset=offset)
        credential = token_of(fence, audience="files", file_ids=(file_id,)) if token is None else token
        answers = self.client.worker.stream(self._files.ReadFile, request, timeout=60, credential=credential)
        content, digest = b"", ""
        async with aclosing(answers):
            async for answer in answers:
                assert answer.offset == offset + len(content)
                content, digest = content + answer.chunk, answer.sha256
        return content, digest


async def _stream(messages: list[library.UploadFileRequest]) -> AsyncIterator[library.UploadFileRequest]:
    for message in messages:
        yield message


async def half_an_upload(sent: asyncio.Event, go_on: asyncio.Event) -> AsyncIterator[library.UploadFileRequest]:
    """Two parts of a file, then what follows only when it is asked for."""
    yield library.UploadFileRequest(name="half", media_type=TEXT, chunk=b"a" * CHUNK)
    yield library.UploadFileRequest(chunk=b"b" * CHUNK)
    sent.set()
    await go_on.wait()
    yield library.UploadFileRequest(chunk=b"c", complete=True)
