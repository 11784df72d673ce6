"""Starting a run: reserve, store, execute; a repeated start is the same run, whatever happened in between (run protocol, Start; I6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from harness.catalog.v1 import agent_pb2
from harness.run.v1 import run_service_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.ids import new_run_id
from services.common.logs import get_logger
from services.runs import placing, resume, serving, start
from services.runs.cancelling import Canceller, tail_of
from services.runs.clearing import Clearer
from services.runs.clients.sessions import Binding
from services.runs.dispatch import Dispatcher
from services.runs.engine import Engine
from services.runs.executor import Executor
from services.runs.held import HeldRun
from services.runs.intent import CancelReason
from services.runs.places import Share
from services.runs.placing import expected_place
from services.runs.plan import Plan
from services.runs.run import Run, Status
from services.runs.segmenting import Tail
from services.runs.start import Next, Occupant, Request
from services.runs.store import Taken

MAX_ATTEMPTS: Final = 200
"""Reservations of one start; each repetition has helped somebody out or waited (I35)."""
LOOK_AGAIN_SECONDS: Final = 0.01
DEFAULT_PROFILE: Final = "default"
_log = get_logger(__name__)


class Starter:
    """Starts turns of a subject's conversations."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, canceller: Canceller, clearer: Clearer) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._canceller = canceller
        self._clearer = clearer

    async def start(self, subject: str, body: run_service_pb2.StartRunRequest) -> Run:
        """The run, once it is stored. Errors: `harness_session_conflict`, `idempotency_mismatch`, `capacity`, `harness_disabled`, and what
        catalog and sessions answer.
        """
        request = start.request_of(self._engine.identity.owner_digest(subject), body)
        try:
            return await self._start(subject, request)
        except HarnessError as refusal:
            if refusal.reason is Reason.IDEMPOTENCY_MISMATCH:
                raise
            # I6: looked up after the binding was read, for its run may have ended and left meanwhile: a repeated request never meets its own
            # run as a conflict, and is answered with it whatever would refuse a new one now.
            known = await self.known(request)
            if known is None:
                raise
            return known

    async def _start(self, subject: str, request: Request) -> Run:
        if self._dispatcher.stopping:
            raise start.stopping()  # I33
        record, version = await self._engine.catalog.current(request.body.agent_id)
        if not record.enabled:
            raise start.disabled()  # I4
        plan = await self._checked_at_first(subject, request, await self._plan_of(version))
        harness = version.blueprint.harness
        self.check_room(plan, harness.id, harness.profile_id or DEFAULT_PROFILE)
        for _ in range(MAX_ATTEMPTS):
            expected: int | None = None
            if request.policy == "interrupt":
                # I6: after the binding was read, and before its reservation could send a run away or dismiss an interrupt: this request may
                # have had its run already.
                expected = await self._revision(subject, request)
                known = await self.known(request)
                if known is not None:
                    return known
            run_id = new_run_id(self._engine.holder)
            reservation = await self._reserve(subject, request, run_id, plan, expected)
            run = await self.after(request, run_id, reservation, plan)
            if run is not None:
                return run
        raise HarnessError(Reason.UNAVAILABLE, "The conversation is too busy: try again.", retry_after=1.0)

    def check_room(self, plan: Plan, harness_id: str, profile_id: str) -> None:
        """Errors: `capacity` when too many runs of the profile wait here (I35)."""
        if self._dispatcher.line_is_full_for(Share((harness_id, profile_id), plan.profile.max_concurrent_runs)):
            raise start.no_room()

    async def checked(self, plan: Plan, request: Request) -> Plan:
        """The plan with the turn's files and what its agent may call, if its harness and the operator's tools, as they are now, serve it. Errors:
        `Unstartable`.
        """
        serving.check_start(plan, request.body.files)
        if request.body.files:
            known = await placing.files_of(self._engine, request.owner, request.body.files)
            # A question whose file was deleted since can still be answered: the run that goes on finds it gone when it reads it, as one that waited does.
            if not request.resumed_from or all(each in known for each in request.body.files):
                plan = serving.with_files(plan, request.body.files, known)
        if not plan.has_tools:
            return plan
        grants = await self._engine.catalog.grants(plan.version.agent_id, plan.version.version)
        return serving.granted(plan, grants, has_broker=self._engine.settings.tool_facade_addresses is not None)

    async def _checked_at_first(self, subject: str, request: Request, plan: Plan) -> Plan:
        """Before anything is reserved. A conversation that is pinned to another version is looked at with its slot (I4). Errors: `Unstartable`."""
        try:
            return await self.checked(plan, request)
        except serving.Unstartable:
            if await self._pinned_version(subject, request) in (0, plan.version.version):
                raise
            return plan

    async def _pinned_version(self, subject: str, request: Request) -> int:
        """The version of the agent that the conversation goes on with, 0 where it begins anew."""
        try:
            binding = await self._engine.sessions.find(subject, request.body.agent_id, request.body.conversation_id)
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return 0
        return binding.pin.agent_version

    async def _plan_of(self, version: agent_pb2.AgentVersion) -> Plan:
        harness = version.blueprint.harness
        return Plan(version, await self._engine.catalog.profile(harness.id, harness.profile_id or DEFAULT_PROFILE))

    async def _revision(self, subject: str, request: Request) -> int:
        """Revision of the conversation's binding, 0 while there is none."""
        try:
            return (
                await self._engine.sessions.find(subject, request.body.agent_id, request.body.conversation_id)
            ).revision
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return 0

    async def _reserve(
        self, subject: str, request: Request, run_id: str, plan: Plan, expected: int | None
    ) -> session_service_pb2.ReserveTurnResponse:
        harness = plan.version.blueprint.harness
        return await self._engine.sessions.reserve(
            subject,
            session_service_pb2.ReserveTurnRequest(
                agent_id=request.body.agent_id,
                conversation_id=request.body.conversation_id,
                pin=binding_pb2.AgentPin(
                    agent_version=plan.version.version,
                    harness_id=harness.id,
                    profile_id=harness.profile_id or DEFAULT_PROFILE,
                ),
                run_id=run_id,
                request_key=request.key_for(run_id),
                on_conflict=request.body.on_conflict or binding_pb2.CONFLICT_POLICY_REJECT,
                expected_revision=expected,
            ),
        )

    async def after(
        self, request: Request, run_id: str, reservation: session_service_pb2.ReserveTurnResponse, plan: Plan
    ) -> Run | None:
        """The run to answer with, or None to reserve again."""
        binding = reservation.binding
        match start.after_reservation(reservation.outcome):
            case Next.STORE:
                return await self._store(request, run_id, binding, plan)
            case Next.ADOPT:
                return await self._adopt(request, reservation.run_id, binding, plan)
            case Next.HELP_CLEAR:
                await self._clearer.help(binding)
                return None
            case Next.LOOK:
                return await self._look(request, reservation.run_id, binding)
            case Next.READ_AGAIN:
                return None
            case Next.INTERRUPT_PENDING:
                raise resume.pending(binding, reservation.run_id)
            case Next.ANSWERED:
                return await self._answered(request, reservation.run_id, binding, plan)
            case Next.ANSWERED_OTHERWISE:
                await self._answered_otherwise(reservation.run_id, binding)
                return None
            case Next.NOT_PENDING:
                raise resume.not_pending(binding, request)

    # Start 2: nobody is answered with a run that is not stored.

    async def _store(
        self, request: Request, run_id: str, binding: Binding, plan: Plan, *, in_place: bool = True
    ) -> Run | None:
        has_slot = binding.HasField("active") and binding.active.run_id == run_id
        plan = await self._served(plan, request, binding, run_id)
        if has_slot and in_place:
            pin = binding.pin
            share = Share((pin.harness_id, pin.profile_id), plan.profile.max_concurrent_runs)
            if self._dispatcher.take_place(share):
                return await self._store_running(request, run_id, binding, plan, share)
        run, inserted = await self._insert(self._queued(request, run_id, binding, has_slot=has_slot), request, binding)
        if inserted and has_slot:
            self._dispatcher.offer(run_id)
        elif inserted:
            self._engine.tasks.spawn("clear_the_way", self._clear_the_way(request, run_id, binding))
        return run

    async def _store_running(
        self, request: Request, run_id: str, binding: Binding, plan: Plan, share: Share
    ) -> Run | None:
        """In place: stored at once as running, generation 1, while its runtime is made (Start 3)."""
        executor: Executor | None = None
        begun = False
        try:
            wanted = self._in_place(self._queued(request, run_id, binding, has_slot=True), binding, plan)
            executor = Executor(HeldRun(self._engine, wanted, request.body, binding, Tail(), request.decision))
            executor.place_early(binding, plan)
            run, begun = await self._insert(wanted, request, binding)
            if begun and run is not None:
                executor.held.run = run
                self._dispatcher.begin(executor)
            return run
        finally:
            if not begun:
                self._dispatcher.give_place(share.key)
                if executor is not None:
                    await executor.abandon()

    def _in_place(self, run: Run, binding: Binding, plan: Plan) -> Run:
        issued = expected_place(binding, plan)
        deadline_at = None if issued is None else self._engine.now() + plan.run_seconds * 1000
        return run.running(holder=self._engine.holder, issued=issued, deadline_at=deadline_at)

    async def _served(self, plan: Plan, request: Request, binding: Binding, run_id: str) -> Plan:
        """The plan of what the binding is pinned to. Errors: `Unstartable`, and the reservation is given back."""
        pinned = await self._pinned(plan, binding)
        if pinned is plan:
            return plan
        try:
            return await self.checked(pinned, request)
        except serving.Unstartable:
            await self._canceller.end_reservation(binding, run_id, CancelReason.CLIENT_REQUEST)
            raise

    async def _pinned(self, plan: Plan, binding: Binding) -> Plan:
        """The plan of what the binding is pinned to, which is not always what the agent has become (I4)."""
        pin = binding.pin
        if plan.version.version == pin.agent_version:
            return plan
        version = await self._engine.catalog.version(binding.agent_id, pin.agent_version)
        return Plan(version, await self._engine.catalog.profile(pin.harness_id, pin.profile_id))

    def _queued(self, request: Request, run_id: str, binding: Binding, *, has_slot: bool) -> Run:
        now, pin = self._engine.now(), binding.pin
        return Run(
            run_id=run_id,
            owner=request.owner,
            agent_id=request.body.agent_id,
            conversation_id=request.body.conversation_id,
            request_key=request.key_for(run_id),
            client_request_id=request.body.client_request_id,
            body_digest=request.digest,
            binding_id=binding.binding_id,
            epoch=binding.epoch,
            turn=binding.turn if has_slot else 0,
            agent_version=pin.agent_version,
            harness_id=pin.harness_id,
            profile_id=pin.profile_id,
            policy=request.policy,
            resumed_from=request.resumed_from,
            status=Status.QUEUED,
            created_at=now,
            updated_at=now,
        )

    async def _insert(self, run: Run, request: Request, binding: Binding) -> tuple[Run | None, bool]:
        """Store the run: it, and that it was stored now. Else the run that has its id or its request key already, or None when its id was
        buried meanwhile.
        """
        inserted = await self._engine.store.insert(run, request.stored)
        if not isinstance(inserted, Taken):
            return inserted, True
        by_id = await self._engine.store.get(run.run_id)
        if by_id is not None:
            return (start.same_request(by_id, request) if by_id.is_stored_run else None), False
        known = await self.known(request)
        if known is not None:
            # Older than the reservation: give that back, nothing was stored for it.
            await self._canceller.end_reservation(binding, run.run_id, CancelReason.CLIENT_REQUEST)
        return known, False

    async def _adopt(self, request: Request, run_id: str, binding: Binding, plan: Plan) -> Run | None:
        """The same request holds or awaits the slot under this id: answer it, and store it first if its starter has not yet."""
        run = await self._engine.store.get(run_id)
        if run is None:
            start.check_adoptable(request, run_id, binding)
            # Queued, not in place: its starter may be making a runtime for it at this moment, and one executor alone does that.
            return await self._store(request, run_id, binding, plan, in_place=False)
        if run.is_stored_run:
            return start.same_request(run, request)
        await self._canceller.end_reservation(binding, run_id, CancelReason.CLIENT_REQUEST)
        return None

    async def known(self, request: Request) -> Run | None:
        """The run of the same request, if it had one. Errors: `idempotency_mismatch`."""
        if not request.named_key:
            return None
        run = await self._engine.store.find_request(
            request.owner, request.body.agent_id, request.body.conversation_id, request.named_key
        )
        return None if run is None else start.same_request(run, request)

    async def _answered(self, request: Request, run_id: str, binding: Binding, plan: Plan) -> Run | None:
        """The same decision, taken before by this run: it alone is answered, under whatever request it was stored (I24)."""
        if binding.active.run_id == run_id:
            # Not stored yet, it is stored as the request that has the slot.
            return await self._adopt(replace(request, named_key=binding.active.request_key), run_id, binding, plan)
        run = await self._engine.store.get(run_id)
        if run is None or not run.is_stored_run:
            raise resume.answered_long_ago()
        return run

    async def _answered_otherwise(self, run_id: str, binding: Binding) -> None:
        """Another decision was taken, but only a run that is stored, and was not given up, is a reason for a conflict (Start 1)."""
        if binding.active.run_id == run_id:
            state = await self.help_out(binding, run_id)
            if state is Occupant.UNSTORED:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if state is not Occupant.WORKING:
                return
        raise resume.answered_otherwise(run_id)

    # Start 1: before any conflict is believed.

    async def _look(self, request: Request, occupant_id: str, binding: Binding) -> Run | None:
        state = await self.help_out(binding, occupant_id)
        if state is Occupant.WORKING:
            raise start.conflict(request, occupant_id)
        if state is Occupant.UNSTORED:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return None

    async def help_out(self, binding: Binding, run_id: str) -> Occupant:
        """Look at a run that holds or awaits the slot. If it ended, or was reserved and never stored, its place is given back, and whoever is
        next is executed.
        """
        run = await self._engine.store.get(run_id)
        has_terminal = run is not None and bool((await tail_of(self._engine.log, run_id)).terminal_status)
        state = start.occupant_state(
            run,
            has_terminal=has_terminal,
            since=start.reserved_at(binding, run_id),
            now=self._engine.clock.wall(),
            grace=self._engine.settings.reservation_grace_seconds,
        )
        if state is Occupant.ABANDONED:
            run = await self._canceller.bury(binding, run_id)
            if run.is_stored_run:
                return Occupant.WORKING  # stored after all
        if state in (Occupant.ENDED, Occupant.ABANDONED):
            # A tombstone is no use of the epoch.
            await self._canceller.give_back(binding.binding_id, run_id, run)
        return state

    async def _clear_the_way(self, request: Request, run_id: str, binding: Binding) -> None:
        """For a run that waits: an occupant that ended is helped out, and with policy `interrupt` those in the way are superseded."""
        if request.policy == "interrupt":
            await self.supersede(binding, run_id)
        elif binding.HasField("active"):
            await self.help_out(binding, binding.active.run_id)

    async def supersede(self, binding: Binding, by_run_id: str) -> None:
        """End the occupant that the reservation saw, and the waiting runs of the same policy (run protocol, Start 1). The sweep repeats it."""
        targets = [binding.active.run_id] if binding.HasField("active") else []
        targets += [
            waiting.run_id
            for waiting in binding.waiting
            if waiting.policy == binding_pb2.CONFLICT_POLICY_INTERRUPT and waiting.run_id != by_run_id
        ]
        for run_id in targets:
            run = await self._engine.store.get(run_id)
            if run is not None and run.is_open and run.run_id != by_run_id:
                await self._canceller.cancel(run, CancelReason.SUPERSEDED)
            await self.help_out(binding, run_id)
