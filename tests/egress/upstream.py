"""A model endpoint as the egress sees one: it records what reaches it and answers as it is told. No model: the stand-in of the Messages API has one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Upstream:
    """What was asked, and how the next question is answered."""

    url: str = ""
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    arrivals: "asyncio.Queue[str]" = field(default_factory=lambda: asyncio.Queue[str]())
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    pieces: tuple[bytes, ...] = (b"event: a\n\n", b"event: b\n\n")
    # Set once the first piece was sent; the second one waits for `go_on`.
    first_sent: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    cut_after_first: bool = False
    # Nothing at all is answered until `go_on`.
    head_waits: bool = False
    # Set when the egress let go of a request that was being answered.
    dropped: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path_qs, dict(request.headers), await request.read()))
        self.arrivals.put_nowait(request.path)
        response = web.StreamResponse(status=self.status, headers=self.headers)
        try:
            if self.head_waits:
                await self.go_on.wait()
            await response.prepare(request)
            for number, piece in enumerate(self.pieces):
                if number:
                    await self.go_on.wait()
                await response.write(piece)
                if number == 0:
                    self.first_sent.set()
                    if self.cut_after_first:
                        assert request.transport is not None
                        request.transport.abort()
                        return response
        except (ConnectionResetError, asyncio.CancelledError):
            self.dropped.set()
            raise
        return response


@asynccontextmanager
async def serving() -> AsyncGenerator[Upstream]:
    """An upstream on loopback."""
    upstream = Upstream()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{path:.*}", upstream.answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield upstream
    upstream.go_on.set()
    await runner.cleanup()
