"""Following a run: its drafts from the runtime into the log, through broken streams, to the runtime's end (run protocol, Issue and follow)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.runs import ending, placing
from services.runs.appending import MAX_PENDING_BYTES
from services.runs.clients.runtime import Batches, code_of
from services.runs.engine import fence_of
from services.runs.held import End, EngineEnd, HeldRun, RuntimeEnd
from services.runs.host import Host
from services.runs.intent import Failure
from services.runs.patience import patiently
from services.runs.plan import Plan
from services.runs.run import Issued
from services.runs.segmenting import Stop
from services.runs.turn import turn_input

FIRST_EVENT_SECONDS: Final = 0.02
"""How long `run.started` waits for the runtime's first event, to stand in one segment with it."""
ACK_EVENTS: Final = 2_048
"""Drafts that may be durable and not yet acknowledged; an eighth of what a runtime holds."""
ACK_BYTES: Final = 2 << 20
ACK_SECONDS: Final = 5.0
REATTACH_PAUSE_SECONDS: Final = 0.1
_BROKEN: Final = frozenset({Reason.UNAVAILABLE, Reason.CANCELLED, Reason.INTERNAL, Reason.UNAUTHENTICATED})
"""Refused credentials are among them: after a takeover ours may not be known yet."""
_log = get_logger(__name__)


class Following:
    """The stream of one run from the runtime it was issued to, and the acknowledgements back."""

    def __init__(self, held: HeldRun, issued: Issued, host: Host) -> None:
        self._held = held
        self._issued = issued
        self._host = host
        self._acknowledged = held.appender.durable_offset
        self._acknowledged_bytes = held.appender.durable_bytes
        self._acknowledging: asyncio.Task[None] | None = None
        held.appender.runtime = issued.incarnation

    async def from_start(self, plan: Plan) -> End:
        """Start the run and follow it to its end. Errors: `ProtocolViolation`, `HarnessError`, `Fenced`, store errors."""
        return await self._follow(self._start(await self._with_files(plan)))

    async def from_last_durable(self) -> End:
        """Follow a run that an earlier executor started, from the last durable offset on."""
        # Nobody knows what the earlier executor acknowledged: all that is durable is due, or a runtime that had filled its bound with it
        # would wait for room for ever (I9).
        self._acknowledged = 0
        await self._begin_empty_log()
        return await self._follow(self._attach())

    def acknowledge_if_due(self, *, at_least: int = ACK_EVENTS) -> None:
        """Tell the runtime what is durable: seldom, one call at a time, and only after the append (Issue and follow 4)."""
        appender = self._held.appender
        due = appender.durable_offset - self._acknowledged
        due_bytes = appender.durable_bytes - self._acknowledged_bytes
        if (due >= at_least or due_bytes >= ACK_BYTES) and self._acknowledging is None:
            self._acknowledging = asyncio.create_task(self._acknowledge())

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._acknowledging is not None:
            self._acknowledging.cancel()
            await asyncio.wait({self._acknowledging})

    async def _with_files(self, plan: Plan) -> Plan:
        return await placing.with_files(self._held.engine, self._held.run, plan, self._held.input.files)

    def _start(self, plan: Plan) -> Batches:
        held = self._held
        fence = fence_of(held.run, self._issued.runtime_generation)
        turn = turn_input(held, self._issued, plan)
        held.begin_log(plan.profile.descriptor.adapter_version)
        # Alone if the runtime stays silent; else it stands in the first segment with what came first.
        asyncio.get_running_loop().call_later(FIRST_EVENT_SECONDS, held.appender.kick)
        held.may_have_started = True
        runtimes, incarnation = held.engine.runtimes, self._issued.incarnation
        if held.decision is None:
            return runtimes.start(
                self._host, runtime_service_pb2.StartRunRequest(fence=fence, incarnation=incarnation, turn=turn)
            )
        request = runtime_service_pb2.ResumeRunRequest(
            fence=fence, incarnation=incarnation, turn=turn, decision=held.decision
        )
        return runtimes.resume(self._host, request)

    async def _begin_empty_log(self) -> None:
        """Issue and follow 2: `run.started` comes first, also when the executor that started the run died before its first append."""
        held, engine = self._held, self._held.engine
        if held.packer.last_sequence == 0:
            try:
                plan = await patiently(engine.clock, engine.settings.reattach_seconds, held.plan)
                adapter_version = plan.profile.descriptor.adapter_version
            except HarnessError:
                adapter_version = ""  # I34: a catalog that is away ends no run
            held.begin_log(adapter_version)
            held.appender.kick()

    def _attach(self) -> Batches:
        request = runtime_service_pb2.AttachRunRequest(
            fence=fence_of(self._held.run, self._issued.runtime_generation),
            incarnation=self._issued.incarnation,
            after_offset=self._held.appender.durable_offset,
        )
        return self._held.engine.runtimes.attach(self._host, request)

    async def _follow(self, batches: Batches) -> End:
        held, give_up_at = self._held, 0.0
        while True:
            offset = held.packer.offset
            try:
                return await self._consume(batches)
            except HarnessError as error:
                now = held.engine.clock.monotonic()
                if not give_up_at or held.packer.offset > offset:
                    give_up_at = now + held.engine.settings.reattach_seconds
                again = await self._after_break(error, may_retry=now < give_up_at)
            if isinstance(again, EngineEnd):
                return again
            batches = again

    async def _after_break(self, error: HarnessError, *, may_retry: bool) -> Batches | EngineEnd:
        """The stream broke: losing it does not end the run, losing its process does (I9, I11). Unreachable is not yet dead."""
        held, code = self._held, code_of(error)
        if code in ("incarnation_mismatch", "runtime_gone"):
            return held.failed(ending.RUNTIME_GONE)
        if code in ("run_unknown", "runtime_unknown"):
            return await self._start_there(make=code == "runtime_unknown")
        if error.reason not in _BROKEN:
            raise error
        if not may_retry:
            return held.failed(await self._gone())
        await held.appender.drain()
        await asyncio.sleep(REATTACH_PAUSE_SECONDS)
        self._host = await held.host(self._issued)
        return self._attach()

    async def _gone(self) -> Failure:
        try:
            in_sandbox = (await self._held.plan()).in_sandbox
        except HarnessError:  # I34: a catalog that is away changes no more than the words
            in_sandbox = False
        return ending.SANDBOX_GONE if in_sandbox else ending.RUNTIME_GONE

    async def _start_there(self, *, make: bool) -> Batches | EngineEnd:
        """Issued to a process that is there and never heard of the run: it is started there (Issue and follow 1), in the runtime of the same
        generation, which is made if the executor before died before it was.
        """
        held, plan = self._held, await placing.with_grants(self._held.engine, await self._held.plan())
        engine, run, binding, issued = held.engine, held.run, held.binding, self._issued
        if held.packer.offset or binding is None or (make and plan.in_sandbox):
            return held.failed(ending.RUNTIME_GONE)
        if binding.runtime_generation != issued.runtime_generation:
            return held.failed(
                ending.RUNTIME_GONE
            )  # I27: replaced before it began, and nothing of it would be accepted
        if make and await placing.make_in_host(engine, run, binding, plan, issued) != issued.incarnation:
            return held.failed(ending.RUNTIME_GONE)  # I11: another process is there by now
        held.binding = await placing.with_session(engine, run, binding, plan, issued)
        return self._start(await self._with_files(plan))

    async def _consume(self, batches: Batches) -> End:
        async with aclosing(batches):
            async for batch in batches:
                end = await self._take(batch)
                if end is not None:
                    return end
        return self._held.failed(ending.NO_TERMINAL)  # rule 6

    async def _take(self, batch: event_pb2.EventBatch) -> End | None:
        held, packer, appender = self._held, self._held.packer, self._held.appender
        # I22: a field this version does not know is content that nobody checked.
        batch.DiscardUnknownFields()
        while (stop := packer.pack(batch, held.engine.stamp())) is not None:
            draft = packer.draft_after_offset(batch)
            if stop is Stop.TERMINAL:
                packer.check_terminal(draft)
                return RuntimeEnd(draft)
            await self._record_session(draft)
        appender.kick()
        self.acknowledge_if_due()
        if packer.pending_bytes > MAX_PENDING_BYTES:  # I35: past it the runtime is not read
            await appender.room()
        return None

    async def _record_session(self, draft: event_pb2.EventDraft) -> None:
        """The native id goes onto the binding under the fence, the event keeps a number only (events, session.updated)."""
        held, binding = self._held, self._held.binding
        if binding is not None and binding.native_session_id == draft.native_session_id:
            revision = binding.session_revision  # recorded by an earlier turn
        else:
            fence = fence_of(held.run, self._issued.runtime_generation)
            engine = held.engine
            revision = await patiently(
                engine.clock,
                engine.settings.commit_seconds,
                lambda: engine.sessions.record_native_session(fence, draft.native_session_id),
            )
        held.packer.session_updated(revision, held.engine.stamp())

    async def _acknowledge(self) -> None:
        held, offset, size = self._held, self._held.appender.durable_offset, self._held.appender.durable_bytes
        fence = fence_of(held.run, self._issued.runtime_generation)
        try:
            await held.engine.runtimes.acknowledge(self._host, fence, offset, ACK_SECONDS)
        except HarnessError as error:
            # A later one says the same and more.
            _log.info("not_acknowledged", run_id=held.run_id, reason=error.reason.value)
        else:
            self._acknowledged, self._acknowledged_bytes = offset, size
        finally:
            self._acknowledging = None
