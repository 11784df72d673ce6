"""Subscribers as browsers are: whatever ends their stream, they come back with the id of the last event they have, until the run's end."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.e2e.second_replica import Target, second_replica
from tests.e2e.turns import TERMINALS, Frame, frame_of
from tests.support.mesh import PATIENCE_SECONDS, TOKEN, RunningMesh

AGAIN_SECONDS = 0.1
READ_SECONDS = 20.0
"""Longer than the gateway is ever silent: a stream that says nothing for so long comes from a process that is stopped."""
COME_BACK = (502, 503, 504)

SUBJECT = "watching"


@dataclass(frozen=True)
class Pair:
    """A mesh and a second process each of sessions, runs and gateway on its stores. What is started at a gateway is executed by its runs."""

    mesh: RunningMesh
    urls: tuple[str, str]
    targets: list[Target]

    def second(self, service: str) -> int:
        """The pid of the second process of a service."""
        return next(target for target in self.targets if target.name == f"{service}-b").find()


@asynccontextmanager
async def pair_on(mesh: RunningMesh) -> AsyncGenerator[Pair]:
    """A second replica beside the mesh."""
    async with second_replica(mesh) as (other, targets):
        yield Pair(mesh, (mesh.url, other), targets)


def stopped_outside_of_a_write(data_dir: Path, pid: int, file: str = "store/runs.sqlite3") -> int:
    """SIGSTOP while the process does not hold the write lock of the SQLite file that all replicas use, or nobody could go on at all."""
    for _ in range(50):
        os.kill(pid, signal.SIGSTOP)
        with closing(sqlite3.connect(data_dir / file, timeout=1, isolation_level=None)) as store:
            try:
                store.execute("BEGIN IMMEDIATE")
                store.execute("ROLLBACK")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
            else:
                return pid
    raise AssertionError("the process was never found outside of a write")


def async_client(subject: str = SUBJECT) -> httpx.AsyncClient:
    """A client of any gateway, for any number of streams."""
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": subject},
        timeout=httpx.Timeout(60, pool=None),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    )


@dataclass
class Subscriber:
    """One subscriber of a run. It goes round the gateways; every event it is given must follow on from its last one (I7)."""

    run_id: str
    urls: Sequence[str]
    after: int = 0
    frames: list[Frame] = field(default_factory=list[Frame])
    arrived: list[float] = field(default_factory=list[float])
    """When each frame came, monotonic seconds."""
    connections: int = 0
    broken: int = 0
    """Connections that were cut off, rather than ended."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> int:
        """The id of the last event it has."""
        return self.frames[-1].sequence if self.frames else self.after

    @property
    def ended(self) -> bool:
        """Whether it has the terminal."""
        return bool(self.frames) and self.frames[-1].event_type in TERMINALS

    @property
    def raw(self) -> list[bytes]:
        """What it was sent, byte for byte."""
        return [frame.raw for frame in self.frames]

    async def has(self, sequence: int) -> None:
        """Wait until it has that event."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.last < sequence:
                await self._changed.wait()

    async def to_the_end(self, client: httpx.AsyncClient) -> Subscriber:
        """Come back until it has the terminal."""
        while not self.ended:
            try:
                await self._once(client, self.urls[self.connections % len(self.urls)])
            except httpx.TransportError:
                self.broken += 1  # the gateway is gone or stopped: what it had sent is here
            if not self.ended:
                await asyncio.sleep(AGAIN_SECONDS)  # as a browser does, which nobody tells when the gateway is back
        return self

    async def _once(self, client: httpx.AsyncClient, url: str) -> None:
        self.connections += 1
        headers = {"Last-Event-ID": str(self.last)} if self.last else {}
        path = f"{url}/api/v1/runs/{self.run_id}/events/stream"
        timeout = httpx.Timeout(60, read=READ_SECONDS, pool=None)
        async with client.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code in COME_BACK:
                return
            assert response.status_code == 200, await response.aread()
            async with aclosing(_frames(response)) as frames:
                async for frame in frames:
                    self._take(frame)

    def _take(self, frame: Frame) -> None:
        assert frame.sequence == self.last + 1, f"{self.run_id}: {frame.sequence} after {self.last}"
        assert not self.ended, f"{self.run_id}: {frame.event_type} after the terminal"
        self.frames.append(frame)
        self.arrived.append(time.monotonic())
        self._changed.set()
        self._changed.clear()


async def cancelled(run_id: str, url: str) -> int:
    """Tell a run to end, again while what it is told through is still being started again; the sequence of its terminal."""
    async with async_client() as client, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                answer = await client.delete(f"{url}/api/v1/runs/{run_id}")
            except httpx.TransportError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if answer.status_code not in COME_BACK:
                break
            await asyncio.sleep(AGAIN_SECONDS)
    assert answer.status_code == 200, answer.text
    run = answer.json()["data"]
    assert run["status"] == "cancelled", run
    last: int = run["last_sequence"]
    return last


async def _frames(response: httpx.Response) -> AsyncGenerator[Frame]:
    buffer = b""
    async for chunk in response.aiter_raw():
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            raw, buffer = buffer[: end + 2], buffer[end + 2 :]
            frame = frame_of(raw)
            if frame is not None:
                yield frame


class Audience:
    """Subscribers that watch at the same time; `all_ended` waits for every one of them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._watching: list[asyncio.Task[Subscriber]] = []

    def add(self, run_id: str, urls: Sequence[str], after: int = 0) -> Subscriber:
        """One more subscriber, which begins at once."""
        subscriber = Subscriber(run_id, urls, after)
        self._watching.append(asyncio.create_task(subscriber.to_the_end(self._client)))
        return subscriber

    async def all_ended(self) -> list[Subscriber]:
        """All of them, each with the terminal of its run."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return list(await asyncio.gather(*self._watching))

    async def leave(self) -> None:
        """Everybody goes away."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)


@asynccontextmanager
async def audience() -> AsyncGenerator[tuple[httpx.AsyncClient, Audience]]:
    """A client and its audience, which is gone at the end."""
    async with async_client() as client:
        watching = Audience(client)
        try:
            yield client, watching
        finally:
            await watching.leave()
