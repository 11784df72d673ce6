"""`harness.files.v1.FileLibraryService`: translates, calls, translates back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from harness.files.v1 import file_library_service_pb2 as api
from harness.files.v1 import file_library_service_pb2_grpc as api_grpc
from harness.files.v1 import file_pb2
from services.common.caller import caller
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.sessions.files.file import FileDocument
from services.sessions.files.library import Announced, Library, Piece
from services.sessions.service.bounded import bounded
from services.sessions.service.wire import milliseconds_of

FILE_LIBRARY_SERVICE: Final = api.DESCRIPTOR.services_by_name["FileLibraryService"].full_name
DEFAULT_PAGE: Final = 50

Context = grpc.aio.ServicerContext[Any, Any]
add_file_library_servicer = api_grpc.add_FileLibraryServiceServicer_to_server


class FileLibraryServicer(api_grpc.FileLibraryServiceServicer):
    """For the services of the mesh, acting for the caller's subject (I2). `transfer_seconds` bounds an upload and a download."""

    def __init__(self, library: Library, *, transfer_seconds: float) -> None:
        self._library = library
        self._transfer_seconds = transfer_seconds

    async def UploadFile(
        self, request_iterator: AsyncIterator[api.UploadFileRequest], context: Context
    ) -> api.UploadFileResponse:
        subject = caller().require_subject()
        first = await anext(request_iterator, None)
        if first is None:
            raise invalid_request([FieldIssue("", "required", "Send the file: at least one message.")])
        announced = Announced(first.name, first.media_type, first.size, first.client_request_id)
        bound = asyncio.timeout(self._transfer_seconds)
        try:
            # I14, I35: a sender that stops sending gives its place back, whatever deadline it set itself.
            async with bound:
                with self._library.transfer_of(subject):
                    file_id, file = await self._library.upload(subject, announced, _pieces(first, request_iterator))
        except TimeoutError:
            if not bound.expired():
                raise
            raise HarnessError(
                Reason.DEADLINE_EXCEEDED, f"An upload may take {self._transfer_seconds:g} seconds."
            ) from None
        return api.UploadFileResponse(file=_message(file_id, file))

    async def GetFile(self, request: api.GetFileRequest, context: Context) -> api.GetFileResponse:
        file = await self._library.get(caller().require_subject(), request.file_id)
        return api.GetFileResponse(file=_message(request.file_id, file))

    async def DownloadFile(
        self, request: api.DownloadFileRequest, context: Context
    ) -> AsyncIterator[api.DownloadFileResponse]:
        subject = caller().require_subject()
        file = await self._library.get(subject, request.file_id)
        with self._library.transfer_of(subject):
            yield api.DownloadFileResponse(file=_message(request.file_id, file))
            pieces = self._library.download(file)
            async with bounded(pieces, self._transfer_seconds):
                async for chunk in pieces:
                    yield api.DownloadFileResponse(chunk=chunk)

    async def ListFiles(self, request: api.ListFilesRequest, context: Context) -> api.ListFilesResponse:
        files, following = await self._library.page(
            caller().require_subject(), request.page_size or DEFAULT_PAGE, request.page_token or None
        )
        return api.ListFilesResponse(files=[_message(*known) for known in files], next_page_token=following or "")

    async def DeleteFile(self, request: api.DeleteFileRequest, context: Context) -> api.DeleteFileResponse:
        await self._library.delete(caller().require_subject(), request.file_id)
        return api.DeleteFileResponse(file_id=request.file_id)

    async def ResolveFiles(self, request: api.ResolveFilesRequest, context: Context) -> api.ResolveFilesResponse:
        keep_until = milliseconds_of(request.keep_until) if request.HasField("keep_until") else None
        files = await self._library.resolve(request.owner_id, list(request.file_ids), keep_until)
        return api.ResolveFilesResponse(files=[_message(*known) for known in files])


async def _pieces(first: api.UploadFileRequest, rest: AsyncIterator[api.UploadFileRequest]) -> AsyncIterator[Piece]:
    yield Piece(first.chunk, first.complete)
    async for message in rest:
        yield Piece(message.chunk, message.complete)


def _message(file_id: str, file: FileDocument) -> file_pb2.File:
    message = file_pb2.File(
        file_id=file_id, name=file["name"], media_type=file["media_type"], size=file["size"], sha256=file["sha256"]
    )
    message.created_at.FromMilliseconds(file["created_at"])
    message.expires_at.FromMilliseconds(file["expires_at"])
    return message
