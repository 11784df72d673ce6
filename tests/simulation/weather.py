"""What goes wrong, how often and how badly: drawn once for each seed, so that schedules differ in kind and not only in luck."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from tests.simulation.history import History


@dataclass(frozen=True, slots=True)
class Level:
    """How hard it blows. Probabilities are for each message, rates for each second of the random phase."""

    name: str
    message_lost: float = 0.0
    message_doubled: float = 0.0
    message_late: float = 0.0
    stream_cut: float = 0.0
    notice_lost: float = 0.0
    store_lost: float = 0.0
    write_unknown: float = 0.0
    crashes: float = 0.0
    pauses: float = 0.0
    stops: float = 0.0
    host_crashes: float = 0.0
    store_away: float = 0.0
    bus_away: float = 0.0
    drift: float = 0.0
    skew: float = 0.0
    slow: float = 0.0
    """Share of messages and store calls that take tenths of a second."""
    runtime_lost: float = 0.0
    """Like `message_lost` and `message_late`, of calls to hosts alone: never drawn, only set."""
    runtime_late: float = 0.0


LEVELS: Final = {
    level.name: level
    for level in (
        Level("calm"),
        Level("rain", message_lost=0.01, message_doubled=0.02, message_late=0.02, stream_cut=0.02, notice_lost=0.1,
              store_lost=0.005, write_unknown=0.005, slow=0.02, drift=0.002, skew=0.5),
        Level("crash", crashes=0.5, host_crashes=0.08, stops=0.1, notice_lost=0.1, message_lost=0.005, slow=0.02, drift=0.002,
              skew=0.5),
        Level("stall", pauses=0.6, message_late=0.03, slow=0.05, notice_lost=0.2, drift=0.05, skew=5.0, write_unknown=0.003),
        Level("storm", message_lost=0.03, message_doubled=0.05, message_late=0.05, stream_cut=0.06, notice_lost=0.4, store_lost=0.02,
              write_unknown=0.02, crashes=0.4, pauses=0.3, stops=0.1, host_crashes=0.1, store_away=0.1, bus_away=0.2, drift=0.05,
              skew=5.0, slow=0.08),
    )
}  # fmt: skip
MIX: Final = ("calm", "rain", "crash", "crash", "stall", "stall", "storm", "storm")


@dataclass(slots=True)
class Scenario:
    """What one schedule is made of. A planted fault, or a person, may set any of it; what is not set is drawn from the seed."""

    level: Level
    runs: int = 2
    sessions: int = 2
    hosts: int = 1
    conversations: int = 2
    clients: int = 2
    """For each conversation."""
    operations: int = 4
    """For each client."""
    seconds: float = 6.0
    """How long the random phase lasts."""
    shuffled: bool = False
    max_active: int = 500
    max_waiting: int = 32
    defects: bool = True
    """Whether an unexpected exception in a process counts as a violation."""
    weights: dict[str, float] = field(default_factory=dict[str, float])
    """Of client operations, on top of the usual ones."""
    agents: tuple[str, ...] = ()
    """What conversations are with; empty: the usual ones."""
    scripts: dict[str, float] = field(default_factory=dict[str, float])
    """Of what runs do, on top of the usual ones."""


FIELDS: Final = frozenset(name for name in Scenario.__dataclass_fields__ if name not in ("level",))


def draw(random: Random, level: str | None, settings: dict[str, Any] | None = None) -> Scenario:
    """The scenario of a seed. `settings` are fields of `Scenario`, or of its level with a dot before their name."""
    chosen = LEVELS[level or random.choice(MIX)]
    strength = random.choice((0.5, 1.0, 1.0, 2.0))
    changes = {
        name: getattr(chosen, name) * strength * random.choice((0.0, 1.0, 1.0, 1.5))
        for name in Level.__dataclass_fields__
        if name not in ("name", "drift", "skew", "runtime_lost", "runtime_late")
    }
    changes["drift"] = chosen.drift
    changes["skew"] = chosen.skew
    scenario = Scenario(
        replace(chosen, **changes),
        runs=random.choice((2, 2, 3)),
        sessions=random.choice((1, 2, 2)),
        hosts=random.choice((1, 1, 2)),
        conversations=random.choice((1, 1, 2, 3)),
        clients=random.choice((1, 2, 2, 3)),
        operations=random.choice((2, 3, 4, 6)),
        seconds=random.choice((3.0, 5.0, 8.0)),
        shuffled=random.random() < 0.2,
        max_active=random.choice((500, 500, 1, 2)),
        max_waiting=random.choice((32, 2)),
    )
    for name, value in (settings or {}).items():
        if name.startswith("."):
            scenario.level = replace(scenario.level, **{name[1:]: value})
        elif name in FIELDS:
            setattr(scenario, name, value)
        else:
            raise ValueError(f"{name} is no field of a scenario")
    return scenario


class Weather:
    """Decides every single mishap. `calm` ends all of them."""

    def __init__(self, random: Random, level: Level, history: History) -> None:
        self._random = random
        self._level = level
        self._history = history
        self.over = False

    def end(self) -> None:
        """From now on nothing goes wrong."""
        self.over = True

    def chance(self, probability: float) -> bool:
        """Whether something that happens with this probability does."""
        return probability > 0 and self._random.random() < probability

    def is_lost(self, kind: str) -> bool:
        """Whether a mishap of this kind, a field of the level, happens now."""
        probability: float = getattr(self._level, kind)
        if self.over or probability <= 0 or self._random.random() >= probability:
            return False
        self._history.count(kind)
        return True

    def count(self, what: str) -> None:
        """For the summary."""
        self._history.count(what)

    def store_delay(self) -> float:
        """Until a call takes effect, seconds."""
        return self._delay(0.0005, 0.004)

    def way_back(self) -> float:
        """From there to the caller: mostly nothing that matters."""
        if self._random.random() < 0.7:
            return 0.0
        return self._delay(0.0002, 0.003)

    def message_delay(self) -> float:
        """One way of a message, seconds."""
        if self.is_lost("message_late"):
            return self._random.uniform(0.05, 2.5)
        return self._delay(0.0005, 0.005)

    def late_at_a_host(self) -> float:
        """How much later a call to a host arrives, seconds."""
        return self._random.uniform(0.05, 2.5) if self.is_lost("runtime_late") else 0.0

    def _delay(self, least: float, most: float) -> float:
        random = self._random.random
        if not self.over and self._level.slow and random() < self._level.slow:
            return 0.02 + random() * 0.4
        return least + random() * (most - least)
