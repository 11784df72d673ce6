"""One seed, one schedule: the mesh, its clients, what goes wrong, and the judgement."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from services.common.ids import Identity
from tests.simulation.bus import BusServer, SimulatedBus
from tests.simulation.checker import Checker
from tests.simulation.clients import Client, Conversation
from tests.simulation.history import History
from tests.simulation.loop import LIFE, Life, SimulatedLoop, SimulationError
from tests.simulation.network import Network
from tests.simulation.processes import CATALOG, LEASE_TTL, PROVIDER, Catalog, HostProcess, Provider, ServiceProcess
from tests.simulation.stand_ins import EPOCH, simulated
from tests.simulation.store import Database, Store
from tests.simulation.violation import Violation
from tests.simulation.weather import Scenario, Weather, draw

SETTLE_SECONDS: Final = 90.0
"""Of the world, after nothing goes wrong any more: by then everything has to be at rest (I9)."""
MAX_STEPS: Final = 400_000
LOOK_SECONDS: Final = 0.2
EXPECTED: Final = ("services.common.store.errors.", "services.common.errors.HarnessError")
"""Errors that a background task may end with: what it looked at is looked at again."""
AGENTS: Final = ("plain", "plain", "brief", "tools", "named")


@dataclass(slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    violation: Violation | None
    history: History
    steps: int
    seconds: float
    scenario: Scenario


class World:
    """The simulated world of one seed."""

    def __init__(self, seed: int, level: str | None = None, settings: dict[str, Any] | None = None) -> None:
        self.seed = seed
        self.random = Random(f"harness {seed}")
        self.scenario = draw(self.random, level, settings)
        self.history = History()
        self.loop = SimulatedLoop(self.random, shuffled=self.scenario.shuffled)
        self.loop.world = self
        self.loop.on_error = self._failed
        self.weather = Weather(self.random, self.scenario.level, self.history)
        self.network = Network(self.loop, self.weather, self.random)
        self.tokens: dict[str, Any] = {}
        self.network.verify = self.tokens.get
        self.identity = Identity(b"an identity key of tests", "local")
        self.checker = Checker(self.history.count, lambda: self.loop.now)
        self._databases = {"runs": Database(), "sessions": Database()}
        self._bus = BusServer(self.loop, self.weather)
        self._catalog = Catalog(self)
        self._lives: dict[str, Life] = {}
        self._processes: dict[Life, Any] = {}
        self._incarnations: dict[str, itertools.count[int]] = {}
        self._conversations: list[Conversation] = []
        self._clients: list[Any] = []
        self.violation: Violation | None = None
        self._over = False

    def play(self) -> Outcome:
        """The whole schedule."""
        with simulated():
            try:
                self._begin()
                scenario = self.scenario
                self.loop.run(lambda: self._over, until=scenario.seconds, max_steps=MAX_STEPS)
                if not self._over:
                    self._calm()
                    self.loop.run(lambda: self._over, until=scenario.seconds + SETTLE_SECONDS, max_steps=MAX_STEPS)
                if not self._over:
                    left = [*self.checker.unsettled(), *self._busy_clients()]
                    self.violate(
                        Violation("I9", f"not at rest {SETTLE_SECONDS:g} s after the last fault: {'; '.join(left)}")
                    )
                elif self.violation is None:
                    self.check("finish", {one.key: one.clears for one in self._conversations})
            except SimulationError as error:
                self.violate(Violation("I9", f"{error}: {'; '.join(self.checker.unsettled())}"))
            finally:
                self.loop.close()
        return Outcome(self.seed, self.violation, self.history, self.loop.steps, self.loop.now, self.scenario)

    # --- what stand-ins and processes ask for ---

    def store_of(self, service: str) -> Store:
        """The way of the life that asks to the database of its service."""
        return Store(self.loop, self._databases[service], self.weather, self._wrote)

    def bus_connection(self, holder: str) -> SimulatedBus:
        """The bus, as the life that asks is connected to it."""
        return SimulatedBus(self._bus, holder)

    def started(self, life: Life, process: Any) -> None:
        """A process serves."""
        self._processes[life] = process
        self.history.add(self.loop.now, repr(life), "serves")
        if life.name.startswith("host"):
            incarnation = f"{life.name}-{life.incarnation}"
            self.loop.later(
                self.random.choice((0.05, 0.3, 1.0)), self._catalog.seen.__setitem__, life.name, incarnation
            )

    def ended(self, life: Life) -> None:
        """A process ended in order."""
        self._end(life, "stopped")

    def turn_began(self, life: Life, incarnation: str, turn: Any, construction: Any) -> None:
        """A provider begins a turn."""
        self.history.add(self.loop.now, repr(life), "turn began", run=turn.run_id[-6:], turn=turn.number)
        self.check("turn_began", incarnation, turn.run_id, turn.number, construction.binding.binding_id)

    def turn_ended(self, life: Life, incarnation: str, turn: Any, construction: Any) -> None:
        """A provider's stream is closed."""
        if not life.dead and not self.loop.is_closing:
            self.history.add(self.loop.now, repr(life), "turn ended", run=turn.run_id[-6:])
            self.check("turn_ended", incarnation, turn.run_id, construction.binding.binding_id)

    def told(self, who: str, kind: str, **facts: Any) -> None:
        """A client asked or was answered."""
        self.history.add(self.loop.now, who, kind, **facts)

    def logged(self, event: dict[str, Any]) -> None:
        """A process logged an error."""
        if self.loop.is_closing:
            return
        self.history.count("error_logged")
        facts = {name: value for name, value in event.items() if name not in ("incident_id", "error")}
        error = event.get("error")
        if isinstance(error, dict):
            facts["error"] = f"{error['type']} {[place.rsplit('/', 1)[-1] for place in error['at'][-3:]]}"
        self.history.add(self.loop.now, repr(self.loop.current), "error logged", **facts)
        if "incident_id" in event and self.scenario.defects and not str(facts.get("error")).startswith(EXPECTED):
            self.violate(Violation("defect", f"{self.loop.current} failed unexpectedly: {facts}"))

    def check(self, what: str, *facts: Any) -> Any:
        """Let the checker judge; the first violation ends the schedule."""
        try:
            return getattr(self.checker, what)(*facts)
        except Violation as violation:
            self.violate(violation)
            return facts[1] if what == "watched" else None

    def violate(self, violation: Violation) -> None:
        """An invariant does not hold."""
        if self.violation is None:
            self.violation = violation
            self.history.add(self.loop.now, "checker", "VIOLATION", what=str(violation))
        self._over = True

    # --- the beginning ---

    def _begin(self) -> None:
        scenario, random = self.scenario, self.random
        catalog = Life("catalog", 1, 0.0, rate=1.0, skew=0.0, start=0.0)
        service = {"harness.catalog.v1.ResolutionService": self._catalog}
        self.network.serve(CATALOG, catalog, service)
        provider = Life("provider", 1, 0.0, rate=1.0, skew=0.0, start=0.0)
        self.network.serve(PROVIDER, provider, {"harness.tool.v1.ToolProviderService": Provider(self)})
        for number in range(scenario.sessions):
            self._start(f"sessions-{number + 1}")
        for host in ("host-a", "host-b")[: scenario.hosts]:
            self._catalog.seen[host] = f"{host}-1"
            self._start(host)
        for number in range(scenario.runs):
            self._start(f"runs-{number + 1}")
        agents = scenario.agents or (AGENTS if scenario.hosts > 1 else AGENTS[:-1])
        for number in range(scenario.conversations):
            conversation = Conversation(self, number + 1, random.choice(agents))
            self._conversations.append(conversation)
            for index in range(scenario.clients):
                client = Client(conversation, f"client {number + 1}{'abcdef'[index]}")
                self._clients.append(
                    self.loop.task_in(self.loop.outside, client.run(scenario.operations, scenario.seconds * 0.8))
                )
        self._plan_faults()
        self.loop.later(scenario.seconds, self._look)

    def asked_again_to_clear(self, request: Any) -> None:
        """A message that asks to clear is executed once more, perhaps long after: to whoever is asked that is another wish."""
        for one in self._conversations:
            if (one.agent, one.name) == (request.agent_id, request.conversation_id):
                one.clears += 1

    def _plan_faults(self) -> None:
        level, seconds = self.scenario.level, self.scenario.seconds
        kinds: tuple[tuple[float, Callable[[], None]], ...] = (
            (level.crashes, self._crash),
            (level.pauses, self._pause),
            (level.stops, self._stop),
            (level.host_crashes, self._crash_host),
            (level.store_away, self._store_away),
            (level.bus_away, self._bus_away),
        )
        for rate, action in kinds:
            at = 0.0
            while rate > 0 and (at := at + self.random.expovariate(rate)) < seconds:
                self.loop.later(at, self._soon, action)

    def _soon(self, action: Callable[[], None]) -> None:
        # Not at a moment at which everybody waits, but between two steps of what happens next.
        self.loop.after_steps(self.random.randrange(1, 40), lambda: None if self.weather.over else action())

    def _start(self, name: str) -> None:
        level, random = self.scenario.level, self.random
        number = next(self._incarnations.setdefault(name, itertools.count(1)))
        life = Life(
            name,
            number,
            self.loop.now,
            rate=1.0 + random.uniform(-level.drift, level.drift),
            skew=random.uniform(-level.skew, level.skew),
            start=random.uniform(0, 1000),
        )
        self._lives[name] = life
        process = HostProcess(self, life) if name.startswith("host") else ServiceProcess(self, life)
        self.loop.task_in(life, self._starting(life, process))

    async def _starting(self, life: Life, process: Any) -> None:
        try:
            await process.start()
        except Exception as error:  # noqa: BLE001 - a process that cannot start is a finding of its own
            self.violate(Violation("start", f"{life} did not start: {error!r}"))

    # --- what goes wrong ---

    def _target(self, *names: str) -> Life | None:
        lives = [
            life for name, life in self._lives.items() if name.startswith(names) and not life.dead and not life.paused
        ]
        if not lives:
            return None
        # Mostly somebody who is at work: what happens to the idle shows little.
        holders = {
            facts.document["holder"]
            for facts in self.checker.runs.values()
            if facts.document and facts.document["status"] == "running" and not facts.terminal
        }
        busy = [one.life for one in self._bus.connections if one.holder in holders and one.life in lives]
        return self.random.choice(busy if busy and self.random.random() < 0.75 else lives)

    def _crash(self) -> None:
        life = self._target("runs", "runs-", "sessions") if self.random.random() < 0.25 else self._target("runs")
        if life is not None:
            self._end(life, "crashed")

    def _crash_host(self) -> None:
        life = self._target("host")
        if life is not None:
            self._end(life, "crashed")

    def _end(self, life: Life, how: str) -> None:
        if life.dead:
            return
        self.history.add(self.loop.now, repr(life), how)
        self.history.count(f"{life.name.split('-')[0]}_{how}")
        self.loop.kill(life)
        self.network.died(life)
        self._bus.died(life)
        after = 0.05 if self.weather.over else self.random.choice((0.05, 0.3, 1.0, 3.0))
        self.loop.later(after, self._start_again, life)

    def _start_again(self, life: Life) -> None:
        if self._lives[life.name] is life:
            self._start(life.name)

    def _pause(self) -> None:
        life = self._target("runs", "host", "sessions") if self.random.random() < 0.3 else self._target("runs")
        if life is None:
            return
        seconds = self.random.choice((0.1, 0.5, LEASE_TTL * 0.7, LEASE_TTL * 1.2, LEASE_TTL * 2.5))
        self.history.add(self.loop.now, repr(life), "paused", seconds=seconds)
        self.history.count("paused")
        self.loop.pause(life)
        self.loop.later(seconds, self._resume, life)

    def _resume(self, life: Life) -> None:
        if life.paused and not life.dead:
            self.history.add(self.loop.now, repr(life), "goes on")
            self.check("goes_on", life)
            self.loop.resume(life)

    def _stop(self) -> None:
        life = self._target("runs")
        process = None if life is None else self._processes.get(life)
        if life is None or process is None:
            return
        self.history.add(self.loop.now, repr(life), "asked to stop")
        self.history.count("asked_to_stop")
        self._processes.pop(life)
        self.loop.task_in(life, process.stop())

    def _store_away(self) -> None:
        name = self.random.choice(("runs", "sessions"))
        seconds = self.random.choice((0.1, 1.0, 3.0))
        self._databases[name].away_until = self.loop.now + seconds
        self.history.add(self.loop.now, "store", "away", of=name, seconds=seconds)
        self.history.count("store_away")

    def _bus_away(self) -> None:
        seconds = self.random.choice((0.2, 2.0))
        self._bus.away_until = self.loop.now + seconds
        if self.random.random() < 0.5:
            self._bus.flush()
        self.loop.later(seconds + 0.001, self._bus.wake)
        self.history.add(self.loop.now, "bus", "away", seconds=seconds)
        self.history.count("bus_away")

    # --- the end ---

    def _calm(self) -> None:
        self.history.add(self.loop.now, "world", "calm")
        self.weather.end()
        for database in self._databases.values():
            database.away_until = 0.0
        self._bus.away_until = 0.0
        self._bus.wake()
        for life in list(self._lives.values()):
            if life.paused:
                self._resume(life)
            if life.dead:
                self._start_again(life)

    def _look(self) -> None:
        if not self._busy_clients() and not self.checker.unsettled():
            self._over = True
        else:
            level = self.scenario.level
            self.check(
                "overdue", self.scenario.seconds, EPOCH + self.loop.now, level.skew + level.drift * self.loop.now
            )
            self.loop.later(LOOK_SECONDS, self._look)

    def _busy_clients(self) -> list[str]:
        busy = sum(not client.done() for client in self._clients)
        return [f"{busy} clients wait"] if busy else []

    # --- what takes effect ---

    def _wrote(self, life: Life | None, collection: str, before: Any, after: Any, call: Any) -> None:
        facts = _told(collection, before, after)
        if facts is not None:
            self.history.add(self.loop.now, repr(life), collection, **facts)
        self.check("wrote", collection, before, after, call)

    def _failed(self, life: Life, context: dict[str, Any]) -> None:
        if self.loop.is_closing or str(context.get("message")).startswith("Future exception"):
            return  # an answer that came after its caller had gone
        error = context.get("exception")
        self.history.count("unexpected_error")
        self.history.add(self.loop.now, repr(life), "unexpected", what=context.get("message", ""), error=repr(error))


def _told(collection: str, before: Any, after: Any) -> dict[str, Any] | None:
    if collection == "segments":
        header = after.header
        facts = {"run": header.run_id[-6:], "index": header.index, "generation": header.run_generation}
        if header.is_seal:
            return facts | {"seal": True}
        facts |= {"events": f"{header.first_sequence}-{header.last_sequence}"}
        return facts | ({"terminal": header.state["status"]} if header.state.get("terminal") else {})
    if collection == "parts":
        return None
    if collection == "tool_calls":
        return {
            "call": after["tool_call_id"], "of": after["tool_id"], "state": after["state"], "broker": after.get("broker", "")[-4:],
            "outcome": after.get("outcome", ""), "renewals": after.get("renewals", 0),
        }  # fmt: skip
    shown = after or before
    facts = (
        {"run": shown["run_id"][-6:]}
        if "run_id" in shown
        else {"binding": shown["binding_id"][-6:], "epoch": shown["epoch"]}
    )
    if before is None:
        return facts | {"new": shown["status"], "active": _run_of(shown)}
    for name in shown:
        value: Any = shown[name]
        if before.get(name) == value or name in ("updated_at", "unsettled_changed_at", "rev", "used"):
            continue
        if name == "waiting":
            value = [place["run_id"][-6:] for place in value]
        elif name == "active":
            value = _run_of(shown)
        elif name == "interrupt" and value is not None:
            value = (value["revision"], value["run_id"][-6:], "by", value["consumed_by"][-6:])
        elif name == "head" and value is not None:
            value = (value["revision"], value["run_id"][-6:])
        facts[name] = value
    return facts


def _run_of(document: Any) -> Any:
    active = document.get("active")
    return None if active is None else f"{active['run_id'][-6:]}/{active['run_generation']}"


def play(seed: int, level: str | None = None, settings: dict[str, Any] | None = None) -> Outcome:
    """The schedule of a seed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return World(seed, level, settings).play()
    finally:
        if enabled:
            gc.enable()


__all__ = ["LIFE", "Outcome", "World", "play"]
