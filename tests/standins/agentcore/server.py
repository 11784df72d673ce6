"""The stand-in as one server on the loopback interface, in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.standins.agentcore.control_plane import ControlPlane
from tests.standins.agentcore.data_plane import DataPlane
from tests.standins.agentcore.errors import Refused
from tests.standins.agentcore.http import Reply, Request, read_request
from tests.standins.agentcore.script import Step

MAX_RECORDED = 20_000
START_SECONDS = 30
STREAM_LIMIT = 1 << 20


@dataclass(frozen=True)
class Recorded:
    """A request as it came. `operation` is the service's name of it; `document` its body as JSON, None if it is none."""

    operation: str
    request: Request
    document: Any = field(repr=False)


class _Reader(asyncio.StreamReader):
    """Says when the peer is gone, without reading what it may still have sent."""

    def __init__(self) -> None:
        super().__init__(limit=STREAM_LIMIT)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.gone.set()


class AgentCore:
    """Both planes of the service behind one `endpoint_url`. Use it as a context manager; its methods may be called from any thread."""

    def __init__(self, *, recording: bool = True) -> None:
        self.control = ControlPlane()
        self.data = DataPlane(self.control.knows)
        self.requests: list[Recorded] = []
        self.open_connections = 0
        self._recording = recording
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="agentcore-stand-in", daemon=True)
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._port = 0

    @property
    def url(self) -> str:
        """The `endpoint_url` of both planes."""
        return f"http://127.0.0.1:{self._port}"

    def queue(self, *scripts: list[Step]) -> None:
        """The next invocations play these scripts, one each, whatever their messages say."""
        self.data.queue.extend(scripts)

    def of(self, operation: str) -> list[Recorded]:
        """The requests of one operation so far."""
        with self._changed:
            return [each for each in self.requests if each.operation == operation]

    def forget(self) -> None:
        """Drops sessions and records, so that a long run keeps nothing of turns that are over."""
        with self._changed:
            self.requests.clear()
        self.data.sessions.known.clear()

    def wait(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        """Waits until a condition on this stand-in holds. Errors: TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise TimeoutError(f"the condition did not hold within {seconds} s")

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError(f"the stand-in did not start within {START_SECONDS} s")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)

    def _serve(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self.serve(self._stop))

    async def serve(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set."""
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: _Reader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = _Reader()
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: accept(reader, writer))

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._count(+1)
        try:
            going = True
            while going and (request := await read_request(reader)) is not None:
                going = await self._answered(request, reader, writer)
        except ConnectionError:
            # A client may go away at any moment: that is what it is here to be tested with.
            return
        finally:
            writer.close()
            self._count(-1)

    async def _answered(self, request: Request, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        """Answers; watches for a client that goes away meanwhile. False: the connection is over."""
        reply = Reply(writer)
        answer = asyncio.ensure_future(self._answer(request, reply))
        gone = asyncio.ensure_future(reader.gone.wait())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
                return False
            answer.result()
            return not reply.is_cut
        finally:
            gone.cancel()
            answer.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)
            self._notify()

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            match (request.method, request.path):
                case ("POST", ("harnesses", "invoke")):
                    self._record("InvokeHarness", request)
                    await self.data.invoke_harness(request, reply)
                case ("POST", ("runtimes", _, "invocations")):
                    self._record("InvokeAgentRuntime", request)
                    await self.data.invoke_runtime(request, reply)
                case ("POST", ("runtimes", _, "stopruntimesession")):
                    self._record("StopRuntimeSession", request)
                    await self.data.stop(request, reply)
                case _:
                    self._record("Control", request)
                    await self.control.answer(request, reply)
        except Refused as refused:
            if reply.started:
                # Too late for a status: the stream breaks, as it does when the service itself fails.
                reply.cut()
                return
            await reply.whole(refused.status, refused.document, refused.headers)

    def _record(self, operation: str, request: Request) -> None:
        if not self._recording:
            return
        try:
            document = request.document
        except ValueError:
            document = None
        with self._changed:
            if len(self.requests) >= MAX_RECORDED:
                raise Refused("ServiceQuotaExceededException", f"The stand-in records at most {MAX_RECORDED} requests.")
            self.requests.append(Recorded(operation, request, document))
            self._changed.notify_all()

    def _count(self, change: int) -> None:
        with self._changed:
            self.open_connections += change
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
