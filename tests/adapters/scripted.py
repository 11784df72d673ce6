"""An adapter whose turns are steered from the test, step by step, without clocks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from adapters.sdk import events
from adapters.sdk.capabilities import NATIVE, build_descriptor, capability
from adapters.sdk.contract import RuntimeConstruction, Turn
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.session import EventAssignedSessions
from adapters.sdk.simple import BaseAdapter, BaseRuntime
from adapters.sdk.testing import served
from harness.adapter.v1 import descriptor_pb2
from harness.event.v1 import payload_pb2

CANCEL = payload_pb2.CANCEL_REASON_CLIENT_REQUEST
FAST = HostLimits(stop_seconds=0.2, cleanup_seconds=1.0)


class SteeredRuntime(BaseRuntime):
    """Counts what the host asks of it, and streams what the test's `play` yields."""

    def __init__(self, adapter: "SteeredAdapter", construction: RuntimeConstruction) -> None:
        self.adapter = adapter
        self.construction = construction
        self.initialized = self.restarted = self.cleaned = 0
        self.cancelled: list[int] = []
        self.cleaning = asyncio.Event()

    async def initialize(self) -> None:
        self.initialized += 1
        if self.adapter.initialize_error is not None:
            raise self.adapter.initialize_error

    def stream(self, turn: Turn) -> AsyncIterator:
        stream = self._stream(turn)
        # Kept, so that only the host can be what closes it.
        self.adapter.streams.append(stream)
        return stream

    async def _stream(self, turn: Turn) -> AsyncIterator:
        self.adapter.turns.append(turn)
        self.adapter.begun.set()
        try:
            async for event in self.adapter.play(turn):
                self.adapter.taken += 1
                yield event
        finally:
            self.adapter.ended.append(turn.run_id)

    async def cancel(self, reason):
        self.cancelled.append(reason)
        return self.adapter.side_effects

    async def restart(self) -> None:
        self.restarted += 1

    async def cleanup(self) -> None:
        self.cleaned += 1
        self.cleaning.set()
        if self.adapter.cleanup_hangs:
            await asyncio.Event().wait()


class SteeredAdapter(BaseAdapter):
    def __init__(self, play, sessions=None, style=descriptor_pb2.SESSION_ID_STYLE_UNSPECIFIED) -> None:
        self.play = play
        self.sessions = sessions or EventAssignedSessions()
        self.turns: list[Turn] = []
        self.streams: list[AsyncIterator] = []
        self.ended: list[str] = []
        self.runtimes: list[SteeredRuntime] = []
        self.taken = 0
        self.begun = asyncio.Event()
        self.initialize_error: Exception | None = None
        self.cleanup_hangs = False
        self.side_effects: Any = None
        self.checks: Any = []
        self._descriptor = build_descriptor(
            harness_id="steered",
            display_name="Steered",
            adapter_version="1.0.0",
            capabilities={"stream.text": capability(NATIVE)},
            session_ids=style,
        )

    @property
    def descriptor(self):
        return self._descriptor

    @property
    def session_manager(self):
        return self.sessions

    async def health(self):
        if isinstance(self.checks, Exception):
            raise self.checks
        return self.checks

    async def create_runtime(self, construction):
        runtime = SteeredRuntime(self, construction)
        self.runtimes.append(runtime)
        return runtime


async def until(condition) -> None:
    """Waits for a condition that nothing signals, bounded by the test's own timeout."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.002)


def steered(play, **settings):
    """An adapter that plays `play`, and the context in which it is served with a client."""
    adapter = SteeredAdapter(play)
    settings.setdefault("limits", FAST)
    flow = settings.pop("flow", None)
    if flow is not None:
        limits = settings["limits"]
        return adapter, _served_with_flow(adapter, limits, flow)
    return adapter, served(lambda: adapter, **settings)


def _served_with_flow(adapter, limits, flow):
    @contextlib.asynccontextmanager
    async def context():
        async with served(lambda: adapter, limits=limits) as client:
            client.limits = flow
            yield client

    return context()


async def three(turn):
    for number in range(3):
        yield events.text(str(number))
    yield events.completed()


async def forever(turn):
    yield events.text("begun")
    await asyncio.Event().wait()


def gate():
    """A play that goes on event by event as the test lets it."""
    queue: asyncio.Queue = asyncio.Queue()

    async def play(turn):
        while (event := await queue.get()) is not None:
            yield event

    return queue, play
