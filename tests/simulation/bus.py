"""The simulated bus: hints between replicas that may be lost, doubled, late or out of order, and a server that is away or forgets everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from services.runs.bus.port import Listener, Notice
from services.runs.segment import Segment
from tests.simulation.loop import LIFE, Life, SimulatedLoop
from tests.simulation.weather import Weather

HAND_OUT_SECONDS: Final = 2.0
"""After which an announcement that nobody settled is handed to another replica."""


class BusServer:
    """What all replicas are connected to."""

    def __init__(self, loop: SimulatedLoop, weather: Weather) -> None:
        self.loop = loop
        self.weather = weather
        self.away_until = 0.0
        self.connections: list[SimulatedBus] = []
        self.newest: dict[str, Segment] = {}
        self.announced: deque[str] = deque()
        self.handed_out: dict[str, float] = {}
        """Announced runs in the hands of somebody, and until when they are not handed to another."""

    @property
    def is_away(self) -> bool:
        """Whether nothing gets through."""
        return self.away_until > self.loop.now

    def flush(self) -> None:
        """Forget everything."""
        self.newest.clear()
        self.announced.clear()
        self.handed_out.clear()

    def died(self, life: Life) -> None:
        """A replica is gone."""
        self.connections = [one for one in self.connections if one.life is not life]

    def wake(self) -> None:
        """Let those who wait for announcements look."""
        for connection in self.connections:
            if connection.waiting is not None and not connection.waiting.done() and not connection.life.dead:
                connection.waiting.set_result(None)


class SimulatedBus:
    """One replica's connection. Implements `Bus`."""

    is_up = True

    def __init__(self, server: BusServer, holder: str) -> None:
        life = LIFE.get()
        assert life is not None
        self.life = life
        self.holder = holder
        self.signalled: Callable[[str], None] | None = None
        self.waiting: Any = None
        self._server = server
        self._listener: Listener | None = None
        self._followed: set[str] = set()
        server.connections.append(self)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def publish(self, segment: Segment) -> None:
        server = self._server
        if server.is_away or self.life.dead:
            return
        server.newest[segment.run_id] = segment
        for other in server.connections:
            if other is not self and segment.run_id in other._followed:
                other.send(segment)

    def send(self, segment: Segment) -> None:
        """The notice is on its way here."""
        weather, loop = self._server.weather, self._server.loop
        if weather.is_lost("notice_lost"):
            return
        carried = None if weather.chance(0.2) else segment
        notice = Notice(segment.run_id, segment.last_sequence, carried)
        loop.later(weather.message_delay(), self._arrived, notice)
        if weather.is_lost("message_doubled"):
            loop.later(weather.message_delay() * 3, self._arrived, notice)

    def _arrived(self, notice: Notice) -> None:
        if self._listener is not None and notice.run_id in self._followed:
            self._server.loop.run_in(self.life, self._listener, notice)

    def follow(self, run_id: str) -> None:
        if run_id in self._followed:
            return
        self._followed.add(run_id)
        newest = self._server.newest.get(run_id)
        if newest is not None and not self._server.is_away:
            self.send(newest)

    def unfollow(self, run_id: str) -> None:
        self._followed.discard(run_id)

    def announce(self, run_id: str) -> None:
        server = self._server
        if server.is_away or self.life.dead or server.weather.is_lost("notice_lost"):
            return
        server.announced.append(run_id)
        server.loop.later(server.weather.message_delay(), server.wake)

    async def announced(self, most: int) -> list[str]:
        server = self._server
        while server.is_away or not (found := self._hand_out(most)):
            self.waiting = server.loop.create_future()
            await self.waiting
        return found

    def _hand_out(self, most: int) -> list[str]:
        server, found = self._server, list[str]()
        now = server.loop.now
        stale = [run_id for run_id, until in server.handed_out.items() if until <= now]
        while len(found) < most and (server.announced or stale):
            run_id = stale.pop() if stale else server.announced.popleft()
            server.handed_out[run_id] = now + HAND_OUT_SECONDS
            server.loop.later(HAND_OUT_SECONDS, server.wake)
            found.append(run_id)
        return found

    def settle(self, run_id: str) -> None:
        if not self.life.dead and not self._server.is_away:
            self._server.handed_out.pop(run_id, None)

    def signal(self, holder: str, run_id: str) -> None:
        server, weather = self._server, self._server.weather
        if server.is_away or self.life.dead:
            return
        for other in server.connections:
            if other.holder == holder and other.signalled is not None and not weather.is_lost("notice_lost"):
                server.loop.later(weather.message_delay(), server.loop.run_in, other.life, other.signalled, run_id)

    def on_signal(self, listener: Callable[[str], None]) -> None:
        self.signalled = listener

    async def start(self) -> None:
        return

    async def close(self) -> None:
        server = self._server
        server.connections = [one for one in server.connections if one is not self]
