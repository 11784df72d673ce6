"""Brings the harnesses of a deployment to what is wanted, in rounds; and makes one at once when a turn comes before its round."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from adapters.agentcore.provisioning.control import Control, ControlFault
from adapters.agentcore.provisioning.plan import READY, Found, plan
from adapters.agentcore.provisioning.wanted import AGENT_TAG, DEPLOYMENT_TAG, SPEC_TAG, Wanted
from adapters.agentcore.threads import in_thread

MAX_CHANGES = 50
"""Changes of one round; the rest is left to the next (I35)."""
CHANGE_PAUSE_SECONDS = 0.2
"""Between two changes: the control plane allows a few requests a second."""
_FIRST_LOOK_SECONDS = 0.25
_LONGEST_LOOK_SECONDS = 4.0

LIVING_SECONDS = 3600.0
"""How long agents count as living that another profile named: its next round comes long before."""
SILENT_ROUNDS = 8
"""Rounds of others after which a profile that held none is one no more, as one that was edited since: profiles are seen to in turns."""

MAX_WAIT_SECONDS = 300.0
"""Until a harness that was made for a turn is ready; the turn itself may give up sooner."""

_USABLE = (READY, "UPDATE_FAILED", "DELETE_FAILED")

T = TypeVar("T")
_log = logging.getLogger(__name__)


Change = tuple[str, Callable[[Control], bool]]


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did. `left` counts changes that wait for the next; `faults` are codes, one for each change that failed."""

    created: int = 0
    updated: int = 0
    removed: int = 0
    left: int = 0
    faults: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    """Agents that have a harness here and are not wanted."""


class Provisioner:
    """The harnesses of one deployment in one account and region. Rounds and first turns may overlap, also those of other processes."""

    def __init__(
        self, deployment: str, open_control: Callable[[], Control], *, pause: float = CHANGE_PAUSE_SECONDS
    ) -> None:
        self._deployment = deployment
        self._open = open_control
        self._pause = pause
        self._control: Control | None = None
        self._opening = threading.Lock()
        self._round = asyncio.Lock()
        self._arns: dict[str, str] = {}
        # Who was named as living, by who asked: when, and after how many rounds of all.
        self._living: dict[str, tuple[float, int, frozenset[str]]] = {}
        self._rounds = 0
        self._seen: list[Found] = []
        self._under_way: dict[str, asyncio.Task[str]] = {}

    async def reconcile(self, wanted: Sequence[Wanted], ended: Sequence[str] = (), *, asker: str = "") -> Round:
        """One round. Errors: ControlFault when the harnesses cannot be listed; a change that fails is counted instead. `asker`: the profile that is
        seen to. What another one that has the same deployment named as living, and still holds rounds, is not removed, whoever says that it has ended.
        """
        async with self._round:
            ended = self._surely_ended(wanted, ended, asker)
            specs = {each.name: each.spec_digest for each in wanted}
            # Only what may be left alone goes by tags that were read before: whatever is to be changed is asked for its tags anew.
            known = {each.arn: each.tags for each in self._seen if each.tags.get(SPEC_TAG) == specs.get(each.name)}
            found = await self._call(lambda control: control.of_deployment(self._deployment, known))
            steps = plan(self._deployment, wanted, ended, found)
            self._remember(found, specs)
            changes: list[Change] = [("created", partial(_create, each)) for each in steps.create]
            changes += [("updated", partial(_update, *each)) for each in steps.update]
            changes += [("removed", partial(_remove, each)) for each in steps.remove]
            return replace(await self._carry_out(changes), unlisted=self._unlisted(found, specs))

    async def arn(self, wanted: Wanted) -> str:
        """The ARN of an agent's harness, ready to be invoked; made if need be, once however many ask. Errors: ControlFault."""
        known = self._arns.get(wanted.name)
        if known is not None:
            return known
        task = self._under_way.get(wanted.name)
        if task is None:
            task = asyncio.ensure_future(self._made(wanted))
            self._under_way[wanted.name] = task
            task.add_done_callback(lambda done: self._ended(wanted.name, done))
        # One who stops waiting stops nobody else.
        return await asyncio.shield(task)

    async def known(self, wanted: Wanted) -> str:
        """The ARN of an agent's harness as it is, usable or not; empty: there is none of ours. Makes nothing. Errors: ControlFault."""
        known = self._arns.get(wanted.name)
        if known is not None:
            return known
        found = await self._call(lambda control: control.named(wanted.name))
        ours = found is not None and found.tags.get(DEPLOYMENT_TAG) == self._deployment
        return found.arn if found is not None and ours else ""

    def _ended(self, name: str, task: asyncio.Task[str]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            # Told to everybody who waits; asked for here, too, since nobody may wait any more.
            _log.warning("harness_not_made", extra={"kind": type(task.exception()).__name__})

    def forget(self, wanted: Wanted) -> None:
        """After the service said that there is no such harness: the next turn looks again."""
        self._arns.pop(wanted.name, None)

    async def close(self) -> None:
        """Ends what is under way, and the connections."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._control is not None:
            self._control.close()
            self._control = None

    async def _made(self, wanted: Wanted) -> str:
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                found = await self._found_or_created(wanted)
                if found.tags.get(DEPLOYMENT_TAG) != self._deployment:
                    raise ControlFault("harness_of_another_owner")
                await self._ready(found)
        except TimeoutError:
            raise ControlFault("harness_not_ready") from None
        self._arns[wanted.name] = found.arn
        return found.arn

    async def _found_or_created(self, wanted: Wanted) -> Found:
        pause = _FIRST_LOOK_SECONDS
        while True:
            found = await self._call(lambda control: control.named(wanted.name))
            if found is not None and found.status != "DELETING":
                return found
            # False: it is there by now, or its name is not free yet; the next look tells.
            await self._call(lambda control: control.create(wanted))
            if found is not None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_LOOK_SECONDS)

    async def _ready(self, found: Found) -> None:
        status, pause = found.status, _FIRST_LOOK_SECONDS
        while status not in _USABLE:
            if status in ("", "CREATE_FAILED", "DELETING"):
                raise ControlFault("harness_create_failed")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK_SECONDS)
            status = await self._call(lambda control: control.status(found.harness_id))

    async def _carry_out(self, changes: list[Change]) -> Round:
        done = {"created": 0, "updated": 0, "removed": 0}
        faults: list[str] = []
        for number, (kind, change) in enumerate(changes[:MAX_CHANGES]):
            if number:
                await asyncio.sleep(self._pause)
            try:
                if await self._call(change):
                    done[kind] += 1
            except ControlFault as fault:
                faults.append(fault.code)
                if fault.throttled:
                    return _told(done, len(changes) - number, faults)
        if faults:
            _log.warning("harnesses_not_changed", extra={"count": len(faults), "codes": sorted(set(faults))})
        return _told(done, max(0, len(changes) - MAX_CHANGES), faults)

    def _surely_ended(self, wanted: Sequence[Wanted], ended: Sequence[str], asker: str) -> list[str]:
        now = asyncio.get_running_loop().time()
        self._rounds += 1
        self._living = {
            who: said
            for who, said in self._living.items()
            if now - said[0] < LIVING_SECONDS and self._rounds - said[1] <= SILENT_ROUNDS
        }
        elsewhere = frozenset[str]().union(*(agents for who, (_, _, agents) in self._living.items() if who != asker))
        self._living[asker] = (now, self._rounds, frozenset(each.agent_id for each in wanted))
        if kept := elsewhere.intersection(ended):
            _log.warning("deployment_of_two_profiles", extra={"count": len(kept)})
        return [agent_id for agent_id in ended if agent_id not in elsewhere]

    def _remember(self, found: Sequence[Found], wanted: Mapping[str, str]) -> None:
        ours = [each for each in found if each.tags.get(DEPLOYMENT_TAG) == self._deployment and each.name in wanted]
        self._seen = ours
        self._arns = {each.name: each.arn for each in ours if each.status == READY}

    def _unlisted(self, found: Sequence[Found], wanted: Mapping[str, str]) -> tuple[str, ...]:
        ours = [each for each in found if each.tags.get(DEPLOYMENT_TAG) == self._deployment and each.name not in wanted]
        return tuple(sorted({each.tags.get(AGENT_TAG, "") for each in ours if each.status != "DELETING"} - {""}))

    async def _call(self, ask: Callable[[Control], T]) -> T:
        # Not the loop's own threads, which would hold the end of the process up for as long as a call takes (I33).
        return await in_thread(lambda: ask(self._opened()), "control")

    def _opened(self) -> Control:
        with self._opening:
            if self._control is None:
                self._control = self._open()
            return self._control


def _create(wanted: Wanted, control: Control) -> bool:
    return control.create(wanted)


def _update(found: Found, wanted: Wanted, control: Control) -> bool:
    return control.update(found, wanted)


def _remove(found: Found, control: Control) -> bool:
    return control.remove(found)


def _told(done: Mapping[str, int], left: int, faults: Sequence[str]) -> Round:
    return Round(done["created"], done["updated"], done["removed"], left, tuple(faults))
