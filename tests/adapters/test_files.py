"""Reading a turn's files: whole or not at all, and on from where a read was cut off. A real server plays the facade."""

import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapters.sdk.cancellation import Deadline
from adapters.sdk.errors import HarnessError
from adapters.sdk.facade import FacadeAccess, FacadeChannels
from adapters.sdk.files import Files
from harness.common.v1 import fence_pb2
from harness.files.v1 import file_service_pb2 as pb
from harness.files.v1 import file_service_pb2_grpc as pb_grpc
from harness.runtime.v1 import runtime_pb2

CONTENT = b"0123456789" * 10
FILE = runtime_pb2.FileRef(file_id="fil_1", size=len(CONTENT))


class Executor:
    generation = 1

    async def wait_for_another(self, generation: int, seconds: float) -> bool:
        return False


class Facade(pb_grpc.FileServiceServicer):
    """Gives pieces of ten bytes; `fails_at` ends the first call at that offset with a status."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.fails_at: dict[int, grpc.StatusCode] = {}
        self.digest = hashlib.sha256(CONTENT).hexdigest()
        self.content = CONTENT

    async def ReadFile(self, request: pb.ReadFileRequest, context: Any) -> AsyncIterator[pb.ReadFileResponse]:
        self.offsets.append(request.offset)
        for start in range(request.offset, len(self.content), 10):
            code = self.fails_at.pop(start, None)
            if code is not None:
                await context.abort(code, "no")
            last = start + 10 >= len(self.content)
            yield pb.ReadFileResponse(
                offset=start, chunk=self.content[start : start + 10], sha256=self.digest if last else ""
            )


@pytest.fixture
async def facade() -> AsyncIterator[tuple[Facade, Files]]:
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        address = f"unix:{Path(folder)}/f.sock"
        server, servicer, channels = grpc.aio.server(), Facade(), FacadeChannels()
        pb_grpc.add_FileServiceServicer_to_server(servicer, server)
        server.add_insecure_port(address)
        await server.start()
        access = FacadeAccess(lambda: channels.files(address), fence_pb2.Fence(), Executor(), "token", Deadline(9e9))
        yield servicer, Files(access)
        await channels.close()
        await server.stop(None)


async def test_a_read_that_is_cut_off_goes_on_where_it_was(facade: tuple[Facade, Files]) -> None:
    served, files = facade
    served.fails_at = {30: grpc.StatusCode.UNAVAILABLE, 70: grpc.StatusCode.UNAVAILABLE}
    assert await files.read(FILE) == CONTENT
    assert served.offsets == [0, 30, 70]


async def test_what_is_not_what_was_uploaded_is_not_given(facade: tuple[Facade, Files]) -> None:
    served, files = facade
    for digest, content in (("0" * 64, CONTENT), ("", CONTENT), (served.digest, CONTENT[:-10]), (served.digest, b"")):
        served.digest, served.content = digest, content
        assert await code_of(files) == "file_read_failed"


async def test_i35_a_file_over_the_bound_is_not_read(facade: tuple[Facade, Files]) -> None:
    served, files = facade
    assert await code_of(files, max_bytes=99) == "file_too_large"
    assert served.offsets == []
    # Whatever the turn says of its size.
    with pytest.raises(HarnessError) as caught:
        await files.read(runtime_pb2.FileRef(file_id="fil_1"), max_bytes=99)
    assert caught.value.code == "file_too_large"


async def test_a_file_that_is_gone_and_no_access_are_told_apart(facade: tuple[Facade, Files]) -> None:
    served, files = facade
    served.fails_at = {0: grpc.StatusCode.NOT_FOUND}
    assert await code_of(files) == "file_not_found"
    assert await code_of(Files(None)) == "files_unavailable"


async def code_of(files: Files, **more: Any) -> str:
    with pytest.raises(HarnessError) as caught:
        await files.read(FILE, **more)
    return caught.value.code
