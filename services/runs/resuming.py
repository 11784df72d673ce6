"""Resuming a run: the interrupt is read, the decision checked, then consumed by the reservation that gives the slot (run protocol, Resume)."""

from __future__ import annotations

from harness.run.v1 import run_service_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason, not_found
from services.common.ids import new_run_id
from services.runs import resume, start
from services.runs.clients.sessions import Binding
from services.runs.dispatch import Dispatcher
from services.runs.engine import Engine
from services.runs.plan import Plan
from services.runs.run import Run
from services.runs.start import Request
from services.runs.starting import MAX_ATTEMPTS, Starter
from services.runs.tools.approving import Approvals


class Resumer:
    """Starts the runs that answer interrupts. What comes after the reservation is that of any start."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, starter: Starter, approvals: Approvals) -> None:
        self._engine = engine
        self._approvals = approvals
        self._dispatcher = dispatcher
        self._starter = starter

    async def resume(self, subject: str, asked: run_service_pb2.ResumeRunRequest) -> Run:
        """The run that goes on, once it is stored. Errors: `not_found` for a run that is not the caller's (I25), `invalid_request` for a decision
        that the interrupt does not allow, `revision_conflict`, `harness_session_conflict`, `idempotency_mismatch`, `capacity`, `harness_disabled`.
        """
        interrupted = await self._engine.store.get_owned(self._engine.identity.owner_digest(subject), asked.run_id)
        if interrupted is None:
            raise not_found("run")  # I2, I25
        stored = await self._engine.store.get_input(interrupted.run_id)
        request = resume.request_of(interrupted, stored, asked)
        try:
            if interrupted.trimmed:
                raise resume.asked_long_ago()
            return await self._resume(subject, request, asked)
        except HarnessError as refusal:
            if refusal.reason is Reason.IDEMPOTENCY_MISMATCH:
                raise
            # I6: as for a start, whatever would refuse a new one now.
            known = await self._starter.known(request)
            if known is None:
                raise
            return known

    async def _resume(self, subject: str, request: Request, asked: run_service_pb2.ResumeRunRequest) -> Run:
        if self._dispatcher.stopping:
            raise start.stopping()  # I33
        record, _ = await self._engine.catalog.current(request.body.agent_id)
        if not record.enabled:
            raise start.disabled()  # I4
        for _ in range(MAX_ATTEMPTS):
            binding = await self._binding(subject, request)
            # I6: after the binding was read, before the compare-and-set on just that one.
            known = await self._starter.known(request)
            if known is not None:
                return known
            resume.check(binding, asked)
            # Before the interrupt is consumed: it waits for a harness and tools that can go on.
            plan = await self._starter.checked(await self._plan(binding), request)
            if plan.has_tools:
                await self._approvals.check(binding, asked)
            self._starter.check_room(plan, binding.pin.harness_id, binding.pin.profile_id)
            run_id = new_run_id(self._engine.holder)
            reservation = await self._reserve(subject, request, run_id, binding)
            run = await self._starter.after(request, run_id, reservation, plan)
            if run is not None:
                return run
        raise HarnessError(Reason.UNAVAILABLE, "The conversation is too busy: try again.", retry_after=1.0)

    async def _binding(self, subject: str, request: Request) -> Binding:
        binding = await self._engine.sessions.find(subject, request.body.agent_id, request.body.conversation_id)
        if not binding.HasField("pin"):
            raise resume.not_pending(binding, request)  # I5: nothing of a closed epoch is asked any more
        return binding

    async def _plan(self, binding: Binding) -> Plan:
        """I4: what the binding is pinned to, whatever the agent has become since."""
        pin = binding.pin
        version = await self._engine.catalog.version(binding.agent_id, pin.agent_version)
        return Plan(version, await self._engine.catalog.profile(pin.harness_id, pin.profile_id))

    async def _reserve(
        self, subject: str, request: Request, run_id: str, binding: Binding
    ) -> session_service_pb2.ReserveTurnResponse:
        return await self._engine.sessions.reserve(
            subject,
            session_service_pb2.ReserveTurnRequest(
                agent_id=request.body.agent_id,
                conversation_id=request.body.conversation_id,
                pin=binding.pin,
                run_id=run_id,
                request_key=request.key_for(run_id),
                on_conflict=binding_pb2.CONFLICT_POLICY_REJECT,
                answers=resume.answer_of(request),
                expected_revision=binding.revision,
            ),
        )
