"""One campaign: points one after the other on one busy mesh, a judgement after every so many, and what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.chaos.clients import ANSWER_SECONDS, Clients
from tests.chaos.faults import Faults, Injection
from tests.chaos.judge import violations_of
from tests.chaos.mesh import ChaosMesh
from tests.chaos.plan import Fault, Moment, Point, Possible, point
from tests.chaos.recorded import Recorded
from tests.chaos.report import PointDone, Result
from tests.chaos.stored import StoredMesh
from tests.chaos.subscribers import Subscribers
from tests.chaos.tower import Caught, Recovery, Sight, Tower, is_executed
from tests.e2e.turns import save_agent
from tests.support.mesh import TOKEN

SUBJECT: Final = "chaos"
TALKS_PER_CLIENT: Final = 1.4
AGENTS: Final = 4
IN_FLIGHT: Final = 3
"""Points whose fault is not undone, or whose runs have not gone on, when the next one begins."""
CATCH_SECONDS: Final = 6.0
"""How long the next run in a wanted moment is waited for; past it the point takes whatever runs."""
PATIENCE_SECONDS: Final = 90.0
"""For everything that has to come by itself: a run that goes on, a mesh that settles."""
REPLAYED_AT_ONCE: Final = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which points, on what."""

    seed: int
    numbers: list[int]
    check_every: int
    ttl: float
    clients: int = 10


@dataclass(slots=True)
class Campaign:
    """The points of one mesh."""

    asked: Asked
    mesh: ChaosMesh
    faults: Faults
    possible: Possible
    journal: Path
    say: Say
    recorded: Recorded = field(default_factory=Recorded)
    result: Result = field(default_factory=Result)
    _open: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def run(self) -> Result:
        """All points, judged."""
        stores = self.mesh.stores()
        tower = Tower(stores)
        with self.mesh.mesh.client(SUBJECT) as client:
            agents = [save_agent(client, agent=f"agent-{self.asked.seed}-{number}") for number in range(AGENTS)]
        began = time.monotonic()
        async with self._busy(agents) as clients:
            with tower.watching():
                for done, number in enumerate(self.asked.numbers, start=1):
                    await self._one_point(tower, point(self.asked.seed, number, self.possible))
                    if done % 10 == 0:
                        self.say(self._progress(done, tower, began))
                    if done % self.asked.check_every == 0 or done == len(self.asked.numbers):
                        await self._checkpoint(clients)
                        if done < len(self.asked.numbers):
                            clients.may_work.set()
        self.result.seconds = time.monotonic() - began
        self.result.take(self.recorded, StoredMesh(stores).logs())
        return self.result

    @asynccontextmanager
    async def _busy(self, agents: list[str]) -> AsyncGenerator[Clients]:
        dice = random.Random(self.asked.seed)
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": SUBJECT},
            timeout=httpx.Timeout(ANSWER_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ) as http:
            subscribers = Subscribers(self.mesh, self.recorded, SUBJECT, http)
            talks = [
                (dice.choice(agents), f"talk-{self.asked.seed}-{number}")
                for number in range(round(TALKS_PER_CLIENT * self.asked.clients))
            ]
            clients = Clients(self.mesh, self.recorded, subscribers, http, agents, talks, self.asked.ttl)
            clients.may_work.set()
            work = [asyncio.create_task(clients.work(random.Random(dice.random()))) for _ in range(self.asked.clients)]
            work.append(asyncio.create_task(self.mesh.learn_lives(agents[0])))
            try:
                yield clients
            finally:
                for task in work:
                    task.cancel()
                ended = await asyncio.gather(*work, return_exceptions=True)
                await self.faults.settle()
            for outcome in ended:
                if isinstance(outcome, Exception):
                    raise outcome

    # One point.

    async def _one_point(self, tower: Tower, here: Point) -> None:
        while len(self._open) >= IN_FLIGHT:
            await asyncio.wait(set(self._open), return_when=asyncio.FIRST_COMPLETED)
        caught = await self._catch(tower, here.moment)
        self.recorded.point = here.number
        if caught is None:  # nothing runs: the fault meets an idle mesh
            caught = Caught("", Moment.ANY, "", {}, (), time.monotonic())
        try:
            injection = self.faults.inject(here.first, caught.holder)
            second = self._second_at_once(here, caught)
        finally:
            self.faults.thaw(caught.frozen)
        done = PointDone(here.number, here.name, here.moment.value, caught.moment.value, bool(caught.run_id))
        done.injected += [each.what for each in (injection, second) if each is not None]
        self.result.points.append(done)
        affected = _affected(caught, [each for each in (injection, second) if each is not None])
        recovery = tower.follow(affected)
        task = asyncio.create_task(self._finish(tower, here, caught, [injection, second], recovery, done))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _catch(self, tower: Tower, moment: Moment) -> Caught | None:
        def fits(sight: Sight) -> bool:
            return moment is Moment.QUEUED or is_executed(sight)

        for wanted in (moment, Moment.ANY):
            caught = await tower.catch(wanted, fits, self._freeze, self.faults.thaw, CATCH_SECONDS)
            if caught is not None:
                return caught
        return None

    def _freeze(self, sight: Sight) -> tuple[int, ...]:
        """Whoever holds the run stands still while the point looks where it is. While that is not known, nobody does."""
        member = self.mesh.member_of(sight.holder)
        return () if member is None else self.faults.freeze(member)

    def _second_at_once(self, here: Point, caught: Caught) -> Injection | None:
        if here.second is None or here.at_takeover:
            return None
        return self.faults.inject(here.second, caught.holder)

    async def _finish(
        self,
        tower: Tower,
        here: Point,
        caught: Caught,
        injected: list[Injection | None],
        recovery: Recovery,
        done: PointDone,
    ) -> None:
        if here.second is not None and here.at_takeover:
            injected.append(await self._second_at_takeover(tower, here.second, caught))
            done.injected += [each.what for each in injected[-1:] if each is not None]
        bound = time.monotonic() + PATIENCE_SECONDS
        for each in injected:
            if each is not None and each.over is not None:
                await asyncio.wait({asyncio.ensure_future(each.over)}, timeout=PATIENCE_SECONDS)
        if not await asyncio.to_thread(recovery.done.wait, max(0.0, bound - time.monotonic())):
            self.recorded.complain(
                f"I9: {here}: {sorted(recovery.waiting)} did not go on within {PATIENCE_SECONDS:g} s"
            )
        done.recovered += recovery.took

    async def _second_at_takeover(self, tower: Tower, second: Fault, caught: Caught) -> Injection | None:
        """As soon as somebody else took one of the runs, or, when nobody does, once a lease has passed."""

        def fits(sight: Sight) -> bool:
            before = caught.affected.get(sight.run_id)
            return before is not None and is_executed(sight) and sight.holder != before[0]

        now = await tower.catch(Moment.ANY, fits, self._freeze, self.faults.thaw, 1.5 * self.asked.ttl + 1)
        injection = self.faults.inject(second, now.holder if now is not None else caught.holder)
        if now is not None:
            self.faults.thaw(now.frozen)
        return injection

    # A judgement.

    async def _checkpoint(self, clients: Clients) -> None:
        began = time.monotonic()
        phases: dict[str, float] = {}

        def passed(phase: str) -> None:
            phases[phase] = time.monotonic() - began - sum(phases.values())

        while self._open:
            await asyncio.wait(set(self._open))
        await self.faults.settle()
        passed("faults over")
        await clients.rest(ANSWER_SECONDS + 4 * self.asked.ttl)
        passed("clients answered")
        await self._settled("after the faults", clients.answer_pending)
        await clients.subscribers.finish(PATIENCE_SECONDS)
        passed("settled")
        await asyncio.gather(
            *(clients.goes_on(agent, talk, random.Random(talk), PATIENCE_SECONDS) for agent, talk in clients.talks)
        )
        await self._settled("after the last turns", clients.answer_pending)
        passed("all go on")
        await self._replay(clients.subscribers)
        passed("replayed")
        stored = StoredMesh(self.mesh.stores())
        wrong = [*self.recorded.wrong, *await asyncio.to_thread(violations_of, stored, self.recorded, self.journal)]
        new = [each for each in wrong if each not in self.result.violations]
        self.result.violate(new)
        self.result.subscribers += len(self.recorded.watchers)
        self.result.reconnects += sum(max(0, seen.connections - 1) for seen in self.recorded.watchers)
        # What was judged is judged; the logs themselves are looked at again each time.
        self.recorded.watchers.clear()
        passed("judged")
        said = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in phases.items())
        self.say(f"judged: {len(self.result.violations)} violations ({said})")
        for each in new:
            self.say(f"VIOLATION {each}")

    async def _settled(self, when: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        stored, began = StoredMesh(self.mesh.stores()), time.monotonic()
        while left := stored.unsettled():
            if time.monotonic() - began > PATIENCE_SECONDS:
                self.recorded.complain(f"I9: not settled {PATIENCE_SECONDS:g} s {when}: {left}")
                return
            await meanwhile()
            await asyncio.sleep(0.1)

    async def _replay(self, subscribers: Subscribers) -> None:
        runs = sorted({seen.run_id for seen in self.recorded.watchers})
        urls = self.mesh.urls
        todo = [(run_id, urls[number % len(urls)]) for number, run_id in enumerate(runs)]
        for first in range(0, len(todo), REPLAYED_AT_ONCE):
            batch = todo[first : first + REPLAYED_AT_ONCE]
            await asyncio.gather(*(subscribers.replay(run_id, url) for run_id, url in batch))

    def _progress(self, done: int, tower: Tower, began: float) -> str:
        return (
            f"{done}/{len(self.asked.numbers)} points, {time.monotonic() - began:.0f} s, {tower.running} runs open, "
            f"{tower.seals} takeovers, {len(self.result.violations) + len(self.recorded.wrong)} violations"
        )


def _affected(caught: Caught, injected: list[Injection]) -> dict[str, int]:
    """The runs that felt it: all that ran, or those of the process that was met."""
    if any(each.everything or (not each.victim and each.what) for each in injected):
        return {run_id: events for run_id, (_, events) in caught.affected.items()}
    victims = {each.victim for each in injected}
    return {run_id: events for run_id, (holder, events) in caught.affected.items() if holder in victims}
