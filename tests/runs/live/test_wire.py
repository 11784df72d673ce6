"""Over a real connection: stored bytes go out as they are, and are what the contract's client reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from harness.run.v1 import run_service_pb2, run_service_pb2_grpc
from services.runs.bus import NoBus
from services.runs.live import LiveHub, serialized
from tests.runs.live.runlog import RunLog, open_log

NAME = run_service_pb2.DESCRIPTOR.services_by_name["RunService"].full_name


async def test_i8_what_a_client_reads_is_what_is_stored(tmp_path: Path) -> None:
    async with open_log(tmp_path) as log:
        hub = LiveHub(log, NoBus(), executes_here=lambda _: True)
        run = RunLog(log)
        for count in (1, 4, 3):
            await run.append(count)
        await run.append(1, terminal=True)

        async def watch(request: run_service_pb2.WatchRunRequest, _: object) -> AsyncIterator[bytes]:
            async for packed in hub.watch_packed(request.run_id, request.after):
                yield packed

        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=run_service_pb2.WatchRunRequest.FromString,
            response_serializer=serialized,
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"WatchRun": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = run_service_pb2_grpc.RunServiceStub(channel)
            for after in (0, 3, 9):
                seen = [
                    event.SerializeToString()
                    async for response in stub.WatchRun(run_service_pb2.WatchRunRequest(run_id="r", after=after))
                    for event in response.events
                ]
                assert seen == run.events[after:]
        await server.stop(None)
        await hub.stop()
        assert hub.followed == 0


def test_a_message_is_serialized_as_by_the_library() -> None:
    response = run_service_pb2.WatchRunResponse()
    response.events.add(sequence=1)
    assert serialized(response) == response.SerializeToString()
