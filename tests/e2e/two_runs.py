"""Two processes of the runs service on one store and one bus, and what may happen to the bus between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from typing import Any

from harness.event.v1 import event_pb2
from harness.run.v1 import run_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.mesh import Client, Mesh, Part, kind

TERMINALS = ("run_completed", "run_failed", "run_cancelled", "run_interrupted")
PATIENCE = 90.0


class TwoRuns:
    """The mesh, its second replica of runs, `runs-b`, and the bus server."""

    def __init__(self, mesh: Mesh, second: Part, valkey: ValkeyServer) -> None:
        self.mesh = mesh
        self.second = second
        self.valkey = valkey

    def heal(self) -> None:
        """Everything runs again."""
        self.valkey.start_again()
        self.mesh.heal()
        if not self.second.lives:
            self.second.start()

    def logs(self) -> str:
        """What both replicas said."""
        return "".join(part.log.read_text("utf-8") for part in (self.mesh.runs, self.second))


@contextmanager
def two_runs(bus_url: str | None = None, **settings: Any) -> Generator[TwoRuns]:
    """`settings` are those of both replicas; `bus_url` if they reach the server in another way."""
    valkey = ValkeyServer()
    valkey.start()
    try:
        mesh = Mesh(settings={"HARNESS_BUS_URL": bus_url or valkey.url, **settings}).start()
        try:
            second = mesh.runs_part("runs-b")
            second.start()
            try:
                yield TwoRuns(mesh, second, valkey)
            finally:
                send(second, signal.SIGCONT)
                second.end(signal.SIGKILL)
        finally:
            mesh.close()
    finally:
        valkey.remove()


def send(part: Part, number: signal.Signals) -> None:
    """A signal to a part that runs."""
    if part.lives:
        assert part.process is not None
        os.kill(part.process.pid, number)


def assert_whole(events: list[event_pb2.Event]) -> str:
    """I7, I9: 1..n without a gap, one start, one terminal, at the end; which."""
    kinds = [kind(event) for event in events]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert kinds[0] == "run_started"
    assert kinds.count("run_started") == 1
    assert [one for one in kinds if one in TERMINALS] == [kinds[-1]]
    return kinds[-1]


async def until(condition: Any, what: str) -> None:
    """A bounded poll where nothing signals."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def whole(client: Client, run_id: str) -> list[event_pb2.Event]:
    """All events of a run to its end, as a subscriber gets them who goes on from the last one when a replica cannot be reached."""
    seen: list[event_pb2.Event] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with aclosing(client.watch(run_id, len(seen))) as events:
                    async for event in events:
                        assert event.sequence == len(seen) + 1  # I7
                        seen.append(event)
            except HarnessError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.05)
            else:
                return seen


async def started(client: Client, agent: str, message: dict[str, Any], conversation: str) -> run_pb2.Run:
    """A run, asked for again under the same key while that is worth it."""
    key = uuid.uuid4().hex
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await client.start(agent, message, conversation, client_request_id=key)
            except HarnessError as error:
                if not error.retryable or error.reason is Reason.HARNESS_SESSION_CONFLICT:
                    raise
                await asyncio.sleep(0.05)


class Relay:
    """A loopback TCP relay to a server, which may be another one from now on, and whose connections may be cut. In a thread of its own."""

    def __init__(self, socket_path: str) -> None:
        self._target = socket_path
        self._connections: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def switch(self, socket_path: str) -> None:
        """Everybody who connects from now on is at the other server; whoever is connected is cut off."""
        self._target = socket_path
        self.cut()

    def cut(self) -> int:
        """Cut all connections; how many there were."""
        return self._run(self._cut())

    def close(self) -> None:
        """End everything."""
        self._server.close()
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cut(self) -> int:
        cut = len(self._connections)
        for writer in list(self._connections):
            writer.transport.abort()
        return cut

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._connections |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, far_writer))
                group.create_task(_pass_on(far_reader, writer))
        finally:
            self._connections -= ends
            for end in ends:
                end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # cut, which is what a relay is for
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
