"""Starts runs and reads their events, checking that sequences rise by exactly one (I7)."""

import itertools
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

AGENT = "bench"
IDLE_SECONDS = 120.0
"""A stream that is silent for longer fails the measurement."""

_STAMP = re.compile(rb'(?:"ts": ?|ts=)([0-9.]+)')
_ID = re.compile(rb"(?:^|\n)id: ?(\d+)")
_TERMINAL = re.compile(rb"event: ?run\.(completed|failed|cancelled|interrupted)")


@dataclass(frozen=True, slots=True)
class Target:
    """A server of the REST shape, and the root of its processes."""

    name: str
    url: str
    pid: int
    token: str = field(repr=False)
    subject: str = "bench"
    harness: str = "reference"
    profile: str = "default"
    more_urls: tuple[str, ...] = ()
    """Of the other gateways, where there are several: requests go to all of them in turn."""
    processes: tuple[tuple[str, int], ...] = ()
    """Name and pid of each process below it, as far as they have names."""


@dataclass(slots=True)
class Reading:
    """What one subscriber saw of a run, to its terminal."""

    after: int
    last: int = 0
    events: int = 0
    sequence_errors: int = 0
    size: int = 0
    terminal: str = ""
    first_at: float = 0.0
    # Seconds from an event's stamp to here; the clocks are the same machine's.
    latencies: list[float] = field(default_factory=list[float])

    def take(self, block: bytes, *, stamps: bool) -> None:
        """Counts the whole frames of a block."""
        now = time.time()
        for found in _ID.findall(block):
            sequence = int(found)
            self.events += 1
            # A gap, a repetition and a step back are each one error, and the count goes on from there.
            self.sequence_errors += sequence != self.last + 1
            self.last = sequence
        if stamps:
            self.latencies += [now - float(stamp) for stamp in _STAMP.findall(block)]
        terminal = _TERMINAL.search(block)
        if terminal is not None:
            self.terminal = terminal[1].decode()


class Client:
    """One subject at one server. Used as an async context manager."""

    def __init__(self, target: Target) -> None:
        self._bases = itertools.cycle([f"{url}/api/v1" for url in (target.url, *target.more_urls)])
        self._target = target

    async def __aenter__(self) -> Self:
        headers = {
            "Authorization": f"Bearer {self._target.token}",
            "X-Harness-Engine-Subject": self._target.subject,
        }
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=IDLE_SECONDS),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def save_agent(self) -> None:
        """Saves the agent that the runs are of; one that is there already is left."""
        harness = {"id": self._target.harness, "profile_id": self._target.profile, "options": {}}
        blueprint = {"id": AGENT, "name": "Bench", "harness": harness, "prompt": {"system": "bench"}}
        async with self._session.put(f"{next(self._bases)}/agents/{AGENT}", json={"blueprint": blueprint}) as answer:
            if answer.status not in (200, 409):
                raise RuntimeError(f"saving the agent: {answer.status} {await answer.text()}")

    async def start(self, **burst: Any) -> str:
        """Starts a burst in a conversation of its own; the run's id."""
        body = {
            "agent_id": AGENT,
            "conversation_id": uuid.uuid4().hex,
            "message": json.dumps({"stamp": True, **burst}),
        }
        async with self._session.post(f"{next(self._bases)}/runs", json=body) as answer:
            if answer.status != 202:
                raise RuntimeError(f"starting a run: {answer.status} {await answer.text()}")
            return str((await answer.json())["data"]["run_id"])

    async def read(self, run_id: str, *, after: int = 0, stamps: bool = False) -> Reading:
        """Follows a run over SSE to its terminal."""
        reading = Reading(after, last=after)
        url = f"{next(self._bases)}/runs/{run_id}/events/stream"
        async with self._session.get(
            url, params={"after": str(after)}, headers={"Accept": "text/event-stream"}
        ) as answer:
            if answer.status != 200:
                raise RuntimeError(f"following a run: {answer.status} {await answer.text()}")
            rest = b""
            async for chunk in answer.content.iter_any():
                reading.size += len(chunk)
                rest += chunk
                whole = rest.rfind(b"\n\n") + 2
                if whole < 2:
                    continue
                if not reading.first_at:
                    reading.first_at = time.perf_counter()
                reading.take(rest[:whole], stamps=stamps)
                rest = rest[whole:]
                if reading.terminal:
                    break
        return reading

    async def page(self, run_id: str, after: int) -> tuple[int, int]:
        """One JSON page behind a cursor: the number of events and the next cursor."""
        async with self._session.get(
            f"{next(self._bases)}/runs/{run_id}/events", params={"after": str(after)}
        ) as answer:
            if answer.status != 200:
                raise RuntimeError(f"paging a run: {answer.status} {await answer.text()}")
            data = (await answer.json())["data"]
        return len(data["events"]), data["next_cursor"]

    async def wait_ended(self, run_id: str) -> dict[str, Any]:
        """Long-polls until the run is over, reading no more than its last event."""
        while True:
            url = f"{next(self._bases)}/runs/{run_id}/events"
            async with self._session.get(url, params={"after": "4000000000", "wait": "20"}) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"waiting for a run: {answer.status} {await answer.text()}")
                run: dict[str, Any] = (await answer.json())["data"]["run"]
            if run["status"] not in ("queued", "running"):
                return run
