"""Connections of the HTTP services, beneath what a request meets."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from services.common.http_protocol import Answer, BoundedHttpProtocol, Bounds


class Protocol(BoundedHttpProtocol):
    """With short patience."""

    bounds = Bounds(max_connections=8, max_header_bytes=4_096, header_seconds=0.2)
    answer = staticmethod(lambda _: Answer(400, [(b"connection", b"close")], b""))


async def test_i35_a_connection_whose_answer_broke_off_waits_for_no_reader():
    asked = asyncio.Event()

    async def breaks_off(_: Any, receive: Any, send: Any) -> None:
        # More than any socket holds, and no end.
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(64 << 20), "more_body": True})
        asked.set()

    config = uvicorn.Config(breaks_off, http=Protocol, ws="none", lifespan="off", log_config=None)
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(90):
            await asked.wait()
            # The client reads nothing, and is still there.
            while state.connections:  # noqa: ASYNC110 - uvicorn signals nothing
                await asyncio.sleep(0.005)
    server.close()
    await server.wait_closed()
