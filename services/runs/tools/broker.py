"""The tool broker: from a call under a run's fence to its one recorded outcome (run protocol, Tools; I10–I12, I24, I25)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf import struct_pb2

from services.common.caller import Capability
from services.common.clock import Clock
from services.common.errors import HarnessError, Reason, invalid_request
from services.common.logs import get_logger
from services.common.store import StoreUnavailable
from services.common.tasks import BackgroundTasks
from services.runs.clients.catalog import CatalogClient
from services.runs.patience import PAUSES
from services.runs.resume import stored_turn
from services.runs.run import Run
from services.runs.store import RunStore
from services.runs.tools import acceptance, approval, arguments, audit, record
from services.runs.tools.acceptance import CallFence, KnownCall
from services.runs.tools.approval import Decision
from services.runs.tools.flight import Flights
from services.runs.tools.grant import Grant, grant_of, granted, max_tool_calls, needs_approval
from services.runs.tools.invoking import Invoker
from services.runs.tools.liveness import BrokerWatch
from services.runs.tools.record import CallRecord, Ended, State
from services.runs.tools.store import CallStore

MAX_ROUNDS: Final = 1_000
"""Looks at one call's record in one request; its deadline ends it before (I35)."""
MAX_UNCLEAR: Final = 10_000
"""Calls that are remembered as begun by nobody knows whom; the oldest are forgotten first, and count as lost in the end (I35)."""
LOOK_SECONDS: Final = 0.5
"""Between two looks at a call that another broker makes, at most."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a call as its runtime sends it. `accepted` is False where the run takes no call any more and only what became of it is told."""

    run: Run
    tool_call_id: str
    tool_id: str
    given: dict[str, Any]
    digest: str
    grant: Grant | None
    accepted: bool = True

    @property
    def key(self) -> str:
        """Of its record."""
        return record.key_of(self.run.binding_id, self.run.epoch, self.tool_call_id)


@dataclass(frozen=True, slots=True)
class Waits:
    """The answer of a call that a person has to decide on."""

    tool_call_id: str
    tool_id: str
    given: dict[str, Any]


class ToolBroker:
    """Calls tools on behalf of runs. `holder` names this life of this process on the calls it makes; `ttl` is when another one counts as dead;
    `per_provider` is how many calls of one provider it makes at once.
    """

    def __init__(
        self,
        runs: RunStore,
        calls: CallStore,
        catalog: CatalogClient,
        invoker: Invoker,
        tasks: BackgroundTasks,
        clock: Clock,
        *,
        holder: str,
        ttl: float,
        per_provider: int,
    ) -> None:
        self._runs = runs
        self._calls = calls
        self._catalog = catalog
        self._clock = clock
        self._holder = holder
        self._watch = BrokerWatch(ttl)
        self._flights = Flights(calls, invoker, tasks, clock, holder=holder, ttl=ttl, per_provider=per_provider)
        self._refusals = audit.Refusals(clock)
        self._unclear: OrderedDict[str, str] = OrderedDict()

    async def describe(self, capability: Capability, fence: CallFence) -> list[Grant]:
        """What the run may call now. Errors: `STALE_LEASE`."""
        _check_capability(capability, fence)
        run = acceptance.check(await self._runs.get(fence.run_id), fence)
        return granted(await self._grants(run), capability.tool_ids)

    async def drain(self, seconds: float) -> None:
        """Before a stop: see `Flights.drain`. What is asked for meanwhile is refused with `unavailable`: another replica takes it."""
        await self._flights.drain(seconds)

    async def invoke(
        self,
        capability: Capability,
        fence: CallFence,
        tool_call_id: str,
        tool_id: str,
        given: struct_pb2.Struct,
    ) -> Ended | Waits:
        """How the call ended, or that it waits for a person. The same call again has the same answer.

        Errors: `STALE_LEASE`, `permission_denied`, `invalid_request` with every problem, `capacity` past the run's limit, `idempotency_mismatch` for another
        call under the id; `unavailable`, or `capacity` that is retryable, where the same call may be made again.
        """
        try:
            return await self._invoke(capability, fence, tool_call_id, tool_id, given)
        except HarnessError as error:
            self._refusals.refused(capability, tool_call_id, tool_id, error)
            raise

    async def _invoke(
        self, capability: Capability, fence: CallFence, tool_call_id: str, tool_id: str, given: struct_pb2.Struct
    ) -> Ended | Waits:
        _check_capability(capability, fence)
        mark = record.mark_of(tool_call_id)
        found = await self._runs.get(fence.run_id)
        try:
            # A fence that is not current is told first; the compare-and-set below decides.
            run = acceptance.check(found, fence, mark)
        except KnownCall:
            return await self._what_became(found, tool_call_id, tool_id, given)
        try:
            call, limit = await self._allowed(run, capability, tool_call_id, tool_id, given)
        except HarnessError:
            if await self._is_known(run, mark, tool_call_id):
                # Whatever the operator changed since: what was accepted has an outcome, and a refusal would read as if there were none.
                return await self._what_became(run, tool_call_id, tool_id, given)
            raise
        await self._check_room(call, mark)
        try:
            run, _ = await self._runs.change(
                run, lambda current: acceptance.accept(current, fence, mark, limit, self._now())
            )
        except KnownCall:
            return await self._what_became(run, tool_call_id, tool_id, given)
        return await self._carried_out(replace(call, run=run))

    async def _allowed(
        self, run: Run, capability: Capability, tool_call_id: str, tool_id: str, given: struct_pb2.Struct
    ) -> tuple[Call, int]:
        """The call, if the agent may make it with these arguments now, and how many calls its run may make."""
        grant = grant_of(await self._grants(run), capability.tool_ids, tool_id)
        if issues := arguments.issues_of(approval.schema_of(grant), given):
            raise invalid_request(arguments.told(issues), "The arguments do not fit the tool.")
        version = await self._catalog.version(run.agent_id or "", run.agent_version)
        plain = arguments.plain(given)
        call = Call(run, tool_call_id, tool_id, plain, arguments.digest_of(tool_id, plain), grant)
        return call, max_tool_calls(version.blueprint.limits)

    async def _check_room(self, call: Call, mark: str) -> None:
        """Before the run accepts it, so that a call there is no room for uses up nothing. One that is known, or has to wait for a person, is looked at
        first. Errors: as `Flights.check_room`.
        """
        if call.grant is None or needs_approval(call.grant) or mark in call.run.tool_calls:
            return
        try:
            self._flights.check_room(call.grant)
        except HarnessError:
            if await self._calls.get(call.key) is None:
                raise

    async def _is_known(self, run: Run, mark: str, tool_call_id: str) -> bool:
        """Whether the call was accepted before, by this run or an earlier one, and does not wait for a person: a call that waits had no effect."""
        found = await self._calls.get(record.key_of(run.binding_id, run.epoch, tool_call_id))
        return mark in run.tool_calls if found is None else found.state is not State.WAITING

    async def _what_became(
        self, run: Run | None, tool_call_id: str, tool_id: str, given: struct_pb2.Struct
    ) -> Ended | Waits:
        if run is None:
            raise acceptance.stale()
        try:
            plain = arguments.plain(given)
        except ValueError:
            raise _other_call() from None
        digest = arguments.digest_of(tool_id, plain)
        return await self._carried_out(Call(run, tool_call_id, tool_id, plain, digest, None, accepted=False))

    async def _carried_out(self, call: Call) -> Ended | Waits:
        """Looks at the call's record, and does what is next, until there is something to tell. What is told is on the record first."""
        for number in range(MAX_ROUNDS):
            found = await self._calls.get(call.key)
            if found is None:
                await self._begin(call)
                continue
            if not found.fits(call.digest):
                found = await self._with_edit(call, found)
            if found.ended is not None:
                return await self._told(call, found, found.ended)
            if found.state is State.WAITING:
                answer = await self._waiting(call, found)
                if answer is not None:
                    return answer
            else:
                await self._started(call, found, number)
        raise HarnessError(Reason.UNAVAILABLE, "The call is still under way: ask again.", retry_after=1.0)

    # --- the record is not there ---

    async def _begin(self, call: Call) -> None:
        """The unique record of the call, before anything is invoked (I11)."""
        now, run = self._now(), call.run
        new = CallRecord(
            binding_id=run.binding_id,
            epoch=run.epoch,
            tool_call_id=call.tool_call_id,
            run_id=run.run_id,
            tool_id=call.tool_id,
            digest=call.digest,
            state=State.WAITING,
            created_at=now,
        )
        if call.grant is None:
            # Accepted once, and whoever accepted it may be about to invoke it: from here on nobody does.
            inserted = await self._calls.insert(record.lost(new, now))
            if inserted is not None:
                audit.ended(inserted)
            return
        if needs_approval(call.grant):
            inserted = await self._calls.insert(new)
            if inserted is not None:
                audit.waits(inserted)
            return
        self._flights.check_room(call.grant)
        begun = record.started(new, self._holder, now)
        with self._noting(begun):
            inserted = await self._calls.insert(begun)
        if inserted is not None:
            self._fly(call, inserted, call.given)

    # --- it waits ---

    async def _waiting(self, call: Call, found: CallRecord) -> Waits | None:
        """The answer while nobody has decided; None once the decision is on the record."""
        if not call.accepted or call.grant is None:
            raise acceptance.stale()  # nothing has happened, and nothing will for this run
        decision = await self._decision(call.run, found)
        now, run_id = self._now(), call.run.run_id
        if decision is None:
            if found.run_id != run_id:
                # From now on it is asked about in this run.
                await self._calls.put(found, replace(found, run_id=run_id))
                return None
            return Waits(call.tool_call_id, call.tool_id, call.given)
        # A decision is used once: the compare-and-set that uses it leaves nothing that waits.
        decided = record.decided(found, decision.verdict.value, decision.interrupt_id, run_id)
        if decision.refuses:
            await self._flights.end(found, record.done(decided, approval.rejected(decision), now, run_id=run_id))
            return None
        given, edited = call.given, ""
        if decision.edit is not None:
            if arguments.issues_of(approval.schema_of(call.grant), decision.edit):  # I25: validated again
                problem = Ended.failed("arguments_invalid", "The edited arguments do not fit the tool's schema.")
                await self._flights.end(found, record.done(decided, problem, now, run_id=run_id))
                return None
            given = arguments.plain(decision.edit)
            edited = arguments.digest_of(call.tool_id, given)
        self._flights.check_room(call.grant)
        wanted = record.started(decided, self._holder, now, run_id=run_id, edited=edited)
        with self._noting(wanted):
            begun = await self._calls.put(found, wanted)
        if begun is not None:
            audit.approved(begun)
            self._fly(call, begun, given)
        return None

    async def _with_edit(self, call: Call, found: CallRecord) -> CallRecord:
        """The record, if the call brings the arguments that a person put in the place of what waits. Errors: `idempotency_mismatch`."""
        decision = await self._decision(call.run, found) if found.state is State.WAITING else None
        if decision is None or decision.edit is None or found.tool_id != call.tool_id:
            raise _other_call()
        try:
            edited = arguments.digest_of(call.tool_id, arguments.plain(decision.edit))
        except ValueError:
            raise _other_call() from None
        if edited != call.digest:
            raise _other_call()
        return found

    async def _decision(self, run: Run, found: CallRecord) -> Decision | None:
        """I25: from where the resume stored it."""
        if not run.resumed_from or found.run_id != run.resumed_from:
            return None
        _, stored = stored_turn(run, await self._runs.get_input(run.run_id))
        return approval.decision_for(found, run, stored)

    # --- it is under way ---

    async def _started(self, call: Call, found: CallRecord, number: int) -> None:
        """Waits for the call's outcome a while; a call whose broker is gone is lost, or goes on here if its tool is idempotent."""
        flight = self._flights.under_way(call.key)
        if flight is not None:
            await asyncio.wait({flight})
            return
        if self._unclear.pop(call.key, None) == found.beginning and call.grant is not None:
            # It is this process that began the call, in a write whose answer was lost, and it never invoked it.
            given = await self._given(call, found)
            if given is not None:
                self._fly(call, found, given)
                return
        if not self._watch.is_gone(found, self._clock.monotonic()):
            await asyncio.sleep(min(LOOK_SECONDS, PAUSES[min(number, len(PAUSES) - 1)]))
            return
        self._watch.forget(call.key)
        given = await self._given(call, found)
        if call.grant is None or not call.grant.descriptor.idempotent or given is None:
            await self._flights.end(found, record.lost(found, self._now()))
            return
        if not await self._may_begin(call.run):
            raise acceptance.stale(retryable=True)  # whoever calls again is told what became of it
        self._flights.check_room(call.grant)
        wanted = record.started(found, self._holder, self._now(), run_id=call.run.run_id)
        with self._noting(wanted):
            taken = await self._calls.put(found, wanted)
        if taken is not None:
            self._fly(call, taken, given)

    def _fly(self, call: Call, begun: CallRecord, given: dict[str, Any]) -> None:
        if call.grant is None:
            raise AssertionError("a call without a grant is never invoked")
        self._flights.begin(call.run, call.grant, begun, given, lambda: self._may_begin(call.run))

    async def _given(self, call: Call, found: CallRecord) -> dict[str, Any] | None:
        """What the tool is invoked with: the arguments of the call, or those a person put in their place; None where these are no longer kept."""
        if not found.edited or found.edited == call.digest:
            return call.given
        return await self._edited_arguments(found)

    async def _may_begin(self, run: Run) -> bool:
        """Whether the run still takes calls, under the executor that this one was accepted for."""
        return acceptance.may_begin(await self._runs.get(run.run_id), run)

    @contextmanager
    def _noting(self, begun: CallRecord) -> Generator[None]:
        """A write that may have begun the call although its answer was lost is remembered: nobody else can invoke it."""
        try:
            yield
        except StoreUnavailable:
            self._unclear[begun.key] = begun.beginning
            self._unclear.move_to_end(begun.key)
            if len(self._unclear) > MAX_UNCLEAR:
                self._unclear.popitem(last=False)
            raise

    async def _edited_arguments(self, found: CallRecord) -> dict[str, Any] | None:
        """The arguments a person put in the place of the call's own, from where the resume stored them; None where that is no longer kept."""
        run = await self._runs.get(found.run_id)
        if run is None:
            return None
        _, stored = stored_turn(run, await self._runs.get_input(run.run_id))
        edit = None if stored is None else approval.edit_of(stored, found.tool_call_id)
        return None if edit is None else arguments.plain(edit)

    # --- it ended ---

    async def _told(self, call: Call, found: CallRecord, ended: Ended) -> Ended:
        if call.accepted and found.run_id != call.run.run_id:
            # Kept as long as the run that was told of it last, so that this run cannot make it again.
            await self._calls.put(found, replace(found, run_id=call.run.run_id))
        self._watch.forget(call.key)
        return ended

    async def _grants(self, run: Run) -> list[Grant]:
        return await self._catalog.grants(run.agent_id or "", run.agent_version)

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)


def _check_capability(capability: Capability, fence: CallFence) -> None:
    """I28: a token (its audience was checked when it was verified) opens its own binding, epoch, runtime generation and run."""
    if (
        capability.binding_id != fence.binding_id
        or capability.epoch != fence.epoch
        or capability.runtime_generation != fence.runtime_generation
        or capability.run_id != fence.run_id
    ):
        raise acceptance.stale()


def _other_call() -> HarnessError:
    return HarnessError(
        Reason.IDEMPOTENCY_MISMATCH,
        "tool_call_id is that of another call of this conversation, with another tool or other arguments: use a new one.",
    )
