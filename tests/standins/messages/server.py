"""The server: reads requests, keeps them, and plays answers; one task a connection, each fault on the socket itself."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tests.standins.messages import frames
from tests.standins.messages.script import ERROR_TYPES, Answer, Json, answer_to

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_KEPT = 10_000
_REASONS: Mapping[int, str] = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 429: "Too Many Requests"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came. `connection` counts connections from 1."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json
    connection: int


class _CutError(Exception):
    """The connection ends here."""


@dataclass
class MessagesServer:
    """The provider. `queue` is answered first, one a request; then each request's own script (see `script`). Keeps at most 10,000 requests."""

    queue: list[Answer] = field(default_factory=list[Answer])
    seen: list[Seen] = field(default_factory=list[Seen])
    connections: int = 0
    url: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    _open: dict["asyncio.Task[None]", asyncio.StreamWriter] = field(
        default_factory=dict["asyncio.Task[None]", asyncio.StreamWriter]
    )

    @property
    def asked(self) -> list[Seen]:
        """The requests for an answer."""
        return [one for one in self.seen if one.method == "POST" and one.path == "/v1/messages"]

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def script(self, *answers: Answer) -> None:
        """What is answered next, whatever the messages say."""
        self.queue = list(answers)
        self.came.clear()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self.connections += 1
        number = self.connections
        self._open[task] = writer
        try:
            while (request := await _request(reader, number)) is not None:
                if len(self.seen) < MAX_KEPT:
                    self.seen.append(request)
                await self._answer(request, reader, writer)
        except _CutError:
            writer.transport.abort()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the end of the connection, whoever ended it
        finally:
            del self._open[task]
            writer.close()

    async def close(self) -> None:
        """Ends every connection."""
        open_now = list(self._open)
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now)

    async def _answer(self, request: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = request.path
        if request.method in ("HEAD", "GET"):
            return await _document(writer, 200, {}, bodiless=request.method == "HEAD")
        if path == "/v1/messages/count_tokens":
            return await _document(writer, 200, {"input_tokens": max(1, len(json.dumps(request.body)) // 4)})
        if path != "/v1/messages":
            return await _document(writer, 404, _error("not_found_error", "There is nothing here."))
        answer = self.queue.pop(0) if self.queue else answer_to(request.body)
        self.came.set()
        if isinstance(answer, dict):
            return await _no_answer(reader, writer, answer)
        if request.body.get("stream"):
            return await _stream(reader, writer, answer, request.body)
        return await _document(writer, 200, frames.document(answer, request.body))


async def _request(reader: asyncio.StreamReader, connection: int) -> Seen | None:
    """The next request of a connection; None at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await _body(reader, headers)
    return Seen(method, target.partition("?")[0], headers, cast("Json", json.loads(body)) if body else {}, connection)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        size = int(headers.get("content-length", "0"))
        if size > MAX_BODY_BYTES:
            raise _CutError
        return await reader.readexactly(size)
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(body) + size > MAX_BODY_BYTES:
            raise _CutError
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return bytes(body)


# --- answers ---


async def _stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, steps: Sequence[Json], request: Json
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
        b"request-id: req_standin\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await _send(writer, frames.opening(request, frames.usage_of(steps)))
    index = 0
    for step in steps:
        if any(kind in step for kind in frames.CONTENT):
            # A block is told to the end, but for the last one before a fault, which stays open.
            for event in frames.block_frames(step, index, request):
                await _send(writer, event)
            index += 1
        elif await _fault(reader, writer, step):
            return
    await _send(writer, frames.closing(steps))
    await _end(writer)


async def _fault(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step: Json) -> bool:
    """What a step does that is no content; whether it is the end of the answer."""
    if "pause" in step:
        await asyncio.sleep(step["pause"])
    elif "ping" in step:
        await _send(writer, frames.frame("ping"))
    elif "event" in step:
        event = cast("Json", step["event"])
        await _send(writer, frames.frame(**{"kind": event["type"], **{k: v for k, v in event.items() if k != "type"}}))
    elif "raw" in step:
        await _send(writer, str(step["raw"]).encode())
    elif "error" in step:
        await _send(writer, frames.frame("error", error=step["error"]))
        await _end(writer)
        return True
    elif "unended" in step:
        await _end(writer)
        return True
    elif "half" in step:
        half = frames.frame("content_block_delta", index=0, delta={"type": "text_delta", "text": "half"})
        await _send(writer, half[: len(half) // 2])
        await _end(writer)
        return True
    elif "cut" in step:
        await writer.drain()
        raise _CutError
    elif "hang" in step:
        await _left(reader)
    return False


async def _no_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Json) -> None:
    if answer.get("hang"):
        await _left(reader)
    if answer.get("cut"):
        raise _CutError
    status = int(answer["status"])
    kind = str(answer.get("type") or ERROR_TYPES.get(status, "api_error"))
    wait = {"retry-after": str(answer["retry_after"])} if "retry_after" in answer else {}
    await _document(writer, status, _error(kind, str(answer.get("message") or "The stand-in refuses.")), wait)


async def _left(reader: asyncio.StreamReader) -> None:
    """Waits until the client is gone, and ends the connection with it."""
    while await reader.read(1024):
        pass
    raise _CutError


async def _document(
    writer: asyncio.StreamWriter,
    status: int,
    document: Json,
    headers: Mapping[str, str] | None = None,
    *,
    bodiless: bool = False,
) -> None:
    body = json.dumps(document).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    reason = _REASONS.get(status, "Error")
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nrequest-id: req_standin\r\n{more}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + (b"" if bodiless else body))
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_standin"}


# --- where it listens ---


@asynccontextmanager
async def serving(*, path: str = "", host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[MessagesServer]:
    """The server on this loop: on loopback, or on the unix socket `path`."""
    made = MessagesServer()
    if path:
        server = await asyncio.start_unix_server(made.connected, path, limit=MAX_HEAD_BYTES)
    else:
        server = await asyncio.start_server(made.connected, host, port, limit=MAX_HEAD_BYTES)
        made.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()


@contextmanager
def serving_in_thread(**listen: Any) -> Generator[MessagesServer]:
    """The same on a loop and thread of its own, for what blocks its own loop or has none."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="messages-standin")
    thread.start()
    context = serving(**listen)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
