"""One long run, live and replayed, and one that nobody reads although they asked for it."""

import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.load.client import Client, Target
from bench.load.sampling import ProcessTree


@dataclass(frozen=True, slots=True)
class Big:
    """One run with many events, from its start to its last event seen."""

    events: int
    yields: bool
    run_id: str
    seconds: float
    events_per_second: float
    cpu_seconds: float
    first_event_ms: float
    sequence_errors: int
    terminal: str


@dataclass(frozen=True, slots=True)
class Replay:
    """A finished run read again. Figures of the JSON pages are zero for a server that has none."""

    events: int
    size: int
    sse_events_per_second: float
    sse_cpu_seconds: float
    sequence_errors: int
    json_events: int
    json_pages: int
    json_events_per_second: float


@dataclass(frozen=True, slots=True)
class Stuck:
    """Subscribers that never read."""

    subscribers: int
    events: int
    seconds: float
    memory_growth_mib: float
    status: str


async def measure_big(client: Client, tree: ProcessTree, events: int, *, yields: bool) -> Big:
    """One run as fast as it goes; with `yields` the harness gives way to others after each event."""
    cpu, began = tree.cpu_seconds(), time.perf_counter()
    run_id = await client.start(n=events, yield0=yields)
    reading = await client.read(run_id)
    seconds = time.perf_counter() - began
    return Big(
        events=events,
        yields=yields,
        run_id=run_id,
        seconds=round(seconds, 3),
        events_per_second=round(reading.events / seconds),
        cpu_seconds=round(tree.cpu_seconds() - cpu, 2),
        first_event_ms=round((reading.first_at - began) * 1000, 1),
        sequence_errors=reading.sequence_errors,
        terminal=reading.terminal,
    )


async def measure_replay(client: Client, tree: ProcessTree, run_id: str) -> Replay:
    """The whole run over SSE, then in JSON pages."""
    cpu, began = tree.cpu_seconds(), time.perf_counter()
    reading = await client.read(run_id)
    sse_seconds = time.perf_counter() - began
    sse_cpu = tree.cpu_seconds() - cpu
    began, cursor, events, pages = time.perf_counter(), 0, 0, 0
    while True:
        found, cursor = await client.page(run_id, cursor)
        if not found:
            break
        events, pages = events + found, pages + 1
    return Replay(
        events=reading.events,
        size=reading.size,
        sse_events_per_second=round(reading.events / sse_seconds),
        sse_cpu_seconds=round(sse_cpu, 2),
        sequence_errors=reading.sequence_errors,
        json_events=events,
        json_pages=pages,
        json_events_per_second=round(events / (time.perf_counter() - began)),
    )


async def measure_stuck(client: Client, target: Target, tree: ProcessTree, subscribers: int, events: int) -> Stuck:
    """A run that `subscribers` ask for and never read (I14); nothing slows it, and memory stays."""
    before, began = tree.memory_mib(), time.perf_counter()
    # The delay lets every subscriber be there before the first event.
    run_id = await client.start(n=events, delay=1.0)
    connections = [_ask(target, run_id) for _ in range(subscribers)]
    try:
        run = await client.wait_ended(run_id)
        after = tree.memory_mib()
    finally:
        for connection in connections:
            connection.close()
    return Stuck(subscribers, events, round(time.perf_counter() - began, 2), round(after - before, 1), run["status"])


def _ask(target: Target, run_id: str) -> socket.socket:
    parts = urlsplit(target.url)
    connection = socket.socket(socket.AF_INET)
    # The smallest buffer on our side: what is not read stays with the server.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(
        (
            f"GET /api/v1/runs/{run_id}/events/stream HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {target.token}\r\nX-Harness-Engine-Subject: {target.subject}\r\n\r\n"
        ).encode("ascii")
    )
    return connection
