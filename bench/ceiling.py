"""The ceiling: a raw server of the same REST shape that does nothing but format and send. What no real server can beat.

It knows no credential, checks nothing and keeps everything in a list. `python -m bench.ceiling` says its URL in its first line.
"""

import asyncio
import json
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class _Run:
    frames: list[bytes] = field(default_factory=list[bytes])
    wakers: set[asyncio.Event] = field(default_factory=set[asyncio.Event])
    done: bool = False

    def add(self, event_type: str, data: dict[str, Any]) -> None:
        text = json.dumps(data)
        self.frames.append(f"id: {len(self.frames) + 1}\nevent: {event_type}\ndata: {text}\n\n".encode())
        for waker in self.wakers:
            waker.set()


class Ceiling:
    """The server."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = head.split(b" ", 2)[:2]
                body = await reader.readexactly(_length(head))
                path = path.split(b"?")[0]
                if method == b"POST":
                    self._answer(writer, 202, {"run_id": self._start(body)})
                elif path.endswith(b"/stream"):
                    await self._stream(writer, self._runs[path.split(b"/")[4].decode()])
                else:
                    self._answer(writer, 200, {"events": [], "next_cursor": 0})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _start(self, body: bytes) -> str:
        run_id, run = uuid.uuid4().hex, _Run()
        self._runs[run_id] = run
        task = asyncio.create_task(_burst(run, json.loads(json.loads(body)["message"])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run_id

    def _answer(self, writer: asyncio.StreamWriter, status: int, data: dict[str, Any]) -> None:
        body = json.dumps({"success": True, "data": data}).encode()
        head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async def _stream(self, writer: asyncio.StreamWriter, run: _Run) -> None:
        waker, sent = asyncio.Event(), 0
        run.wakers.add(waker)
        writer.write(STREAM_HEAD)
        try:
            while not (run.done and sent == len(run.frames)):
                if sent == len(run.frames):
                    waker.clear()
                    await waker.wait()
                block = b"".join(run.frames[sent:])
                sent = len(run.frames)
                writer.write(b"%x\r\n%b\r\n" % (len(block), block))
                await writer.drain()
        finally:
            run.wakers.discard(waker)
        writer.write(b"0\r\n\r\n")


async def _burst(run: _Run, burst: dict[str, Any]) -> None:
    run.add("run.started", {})
    if burst.get("delay"):
        await asyncio.sleep(burst["delay"])
    began, rate = time.monotonic(), burst.get("rate", 0)
    for index in range(burst.get("n", 20)):
        if rate:
            early = began + index / rate - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
        elif burst.get("yield0"):
            await asyncio.sleep(0)
        run.add("content.delta", {"text": "x" * 16, "index": index, "ts": time.time()})
    run.done = True
    run.add("run.completed", {})


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def _main() -> None:
    server = await asyncio.start_server(Ceiling().serve, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
