"""`harness.files.v1.FileService`: translates, calls, translates back. On the facade listener alone."""

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from harness.files.v1 import file_service_pb2 as api
from harness.files.v1 import file_service_pb2_grpc as api_grpc
from services.common.caller import caller
from services.sessions.files.reading import AUDIENCE, FileReading
from services.sessions.service.bounded import bounded
from services.sessions.service.wire import fence_of

FILE_SERVICE: Final = api.DESCRIPTOR.services_by_name["FileService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]
add_file_servicer = api_grpc.add_FileServiceServicer_to_server


class FileServicer(api_grpc.FileServiceServicer):
    """For runtimes, with the capability token of their run. `transfer_seconds` bounds a read."""

    def __init__(self, reading: FileReading, *, transfer_seconds: float) -> None:
        self._reading = reading
        self._transfer_seconds = transfer_seconds

    async def ReadFile(self, request: api.ReadFileRequest, context: Context) -> AsyncIterator[api.ReadFileResponse]:
        pieces = self._reading.read(
            caller().require_capability(AUDIENCE), fence_of(request.fence), request.file_id, request.offset
        )
        async with bounded(pieces, self._transfer_seconds):
            async for piece in pieces:
                yield api.ReadFileResponse(offset=piece.offset, chunk=piece.chunk, size=piece.size, sha256=piece.sha256)
