"""How runtimes connect to facades of the control plane."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import grpc
import grpc.aio
import pytest

from adapters.sdk.facade import FacadeChannels
from harness.tool.v1 import tool_broker_service_pb2 as pb2


@pytest.fixture
def folder():
    # Short, for paths of sockets are.
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    yield path
    shutil.rmtree(path)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # whoever let go first
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_i34_a_facade_that_is_slow_to_answer_a_new_connection_is_reached(folder):
    """As on a loaded machine: an attempt to connect that takes a while is no facade that is away."""
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{folder}/facade.sock")
    await server.start()
    opened: list[asyncio.StreamWriter] = []

    async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)  # the slowness itself; longer than any pause between attempts
        inner_reader, inner_writer = await asyncio.open_unix_connection(folder / "facade.sock")
        opened.extend((writer, inner_writer))
        await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))

    channels = FacadeChannels()
    async with await asyncio.start_unix_server(admit, folder / "slow.sock"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channels.tools(f"unix:{folder}/slow.sock").DescribeTools(pb2.DescribeToolsRequest(), timeout=60)
        # Its own answer, that it has no such method: it was reached.
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        await channels.close()
    for writer in opened:
        writer.close()
    await server.stop(None)
