"""One run in a host: its provider's stream is checked, numbered, kept until durable, and stopped when it must be."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from adapters.sdk.cancellation import CancellationToken, Deadline
from adapters.sdk.errors import (
    NO_SIDE_EFFECTS,
    POSSIBLE_SIDE_EFFECTS,
    InternalError,
    classified,
    failed_draft,
)
from adapters.sdk.host import refusal
from adapters.sdk.host.background import Background
from adapters.sdk.host.buffer import DraftBuffer
from adapters.sdk.host.hooks import RunHooks, Stream
from adapters.sdk.host.late import LateEvents
from adapters.sdk.host.limits import FlowLimits, HostLimits
from adapters.sdk.host.memory import DraftMemory
from adapters.sdk.lifecycle import ProtocolViolation, RunLifecycle, missing_terminal
from adapters.sdk.lifecycle import failed_draft as violation_draft
from adapters.sdk.logs import describe, get_logger
from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2

# Drafts taken from a provider that never waits, before other work of the process gets its turn.
DRAFTS_PER_SLICE = 256
# How long a batch gathers after the first one, and when it is large enough to go at once.
LINGER_SECONDS = 0.002
LARGE_BATCH = 64

_log = get_logger(__name__)


class HostedRun:
    """A run from its admission until all its drafts are acknowledged. All methods belong to the event loop."""

    def __init__(
        self,
        run_id: str,
        turn: int,
        generation: int,
        deadline: Deadline,
        flow: FlowLimits,
        limits: HostLimits,
        background: Background,
        memory: DraftMemory,
    ) -> None:
        self.run_id = run_id
        self.turn = turn
        # The highest run_generation seen: an older executor is refused.
        self.generation = generation
        self._attached = asyncio.Event()
        self.token = CancellationToken()
        self.side_effects: error_pb2.SideEffectStatus.ValueType = NO_SIDE_EFFECTS
        # Whether the provider ignored its cancellation and may still be at work.
        self.abandoned = False
        self._late = LateEvents(run_id)
        self._deadline = deadline
        self._flow = flow
        self._limits = limits
        self._background = background
        self._memory = memory
        self._buffer = DraftBuffer(flow.max_events, flow.max_bytes, memory)
        self._lifecycle = RunLifecycle(limits.events)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._detach_timer: asyncio.TimerHandle | None = None
        self._keep_until = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._wake_at = 0
        self._space: asyncio.Future[None] | None = None
        # Number of the youngest reader.
        self._reader = 0
        # Through which offset drafts were given to the youngest reader.
        self._sent = 0
        # Through which offset an executor has said that drafts are durable; forgotten are these, and what was given up.
        self._acked = 0
        # Through which offset drafts are the host's own: they show nothing of the provider.
        self._announced = 0
        # Whether further events are late: a terminal was accepted, or a cancel has begun.
        self._closed = False
        self._hooks: RunHooks | None = None
        # Called when the provider is done with the run.
        self.on_released: Callable[[HostedRun], None] = _nothing

    def attach_executor(self, generation: int) -> None:
        """A call of this generation came: from now on an older executor is refused (I10)."""
        if generation > self.generation:
            self.generation = generation
            attached, self._attached = self._attached, asyncio.Event()
            attached.set()

    async def wait_for_another(self, generation: int, seconds: float) -> bool:
        """Whether an executor of another generation attached within the bound."""
        if self.generation == generation:
            try:
                async with asyncio.timeout(seconds):
                    await self._attached.wait()
            except TimeoutError:
                return False
        return True

    @property
    def finished(self) -> bool:
        """Whether the terminal is in the buffer."""
        return self._lifecycle.ended

    @property
    def working(self) -> bool:
        """Whether the provider may still be at work."""
        return self._task is not None and not self._task.done()

    @property
    def last_offset(self) -> int:
        """Offset of the newest draft."""
        return self._buffer.last

    def start(self, hooks: RunHooks) -> None:
        """Begins the run; what comes of it is read with `follow`."""
        self._hooks = hooks
        self._task = self._loop.create_task(self._drive(hooks))
        self._task.add_done_callback(self._released)
        self._deadline_timer = self._loop.call_later(self._deadline.remaining(), self._on_deadline)
        self._reader_gone()

    def announce(self, draft: event_pb2.EventDraft) -> None:
        """Takes a draft of the host's own, before the provider's first."""
        if not self._closed:
            for entry in self._lifecycle.accept(draft):
                self._buffer.append(entry)
            self._announced = self._buffer.last
            self._wake()

    def _released(self, _: "asyncio.Task[None]") -> None:
        self._settle()
        self.on_released(self)

    # --- reading ---

    async def follow(self, after: int) -> AsyncGenerator[tuple[int, list[event_pb2.EventDraft]], None]:
        """Batches of drafts after offset `after`, with the offset of the first of each, to the terminal. A younger call ends
        this one with `stream_superseded`. Leaving it does not end the run; the detach grace begins.
        """
        if after > self._buffer.last:
            raise refusal.offset_ahead(self._buffer.last)
        if after < self._buffer.forgotten:
            raise refusal.offset_forgotten(self._buffer.forgotten + 1)
        self._reader += 1
        me = self._reader
        # Who comes again wants it all again: until then nothing of it is given up.
        self._sent = after
        self._memory.withdraw(self)
        self._wake()
        self._cancel_detach()
        position, first = after, True
        try:
            while me == self._reader:
                # An acknowledgement may have come from another stream of this run.
                position = max(position, self._buffer.forgotten)
                fresh = self._buffer.last - position
                if fresh and (first or fresh >= LARGE_BATCH or self.finished):
                    drafts = self._buffer.read(position)
                    self._sent = max(self._sent, position + len(drafts))
                    yield position + 1, drafts
                    position, first = position + len(drafts), False
                elif fresh:
                    await self._wait(position + LARGE_BATCH, LINGER_SECONDS)
                    first = True
                elif self.finished:
                    return
                else:
                    await self._wait(0, None)
            raise refusal.stream_superseded()
        finally:
            if me == self._reader:
                self._reader_gone()
                self._settle()

    def acknowledge(self, through: int) -> None:
        """Drafts up to `through` are durable. A lower offset than before changes nothing; one that does not exist is refused."""
        if through > self._buffer.last:
            raise refusal.offset_ahead(self._buffer.last)
        self._acked = max(self._acked, through)
        self._buffer.forget(through)
        space = self._space
        if space is not None:
            # Whoever waits looks again: it may have waited for this run's own bound while the host's was reached.
            _resolve(space)
        self._settle()

    def _settle(self) -> None:
        if not self.finished or self.working:
            return
        if not self.keeps_drafts:
            # A run that is over in every respect costs next to nothing until its runtime forgets it.
            self._cancel_detach()
            self._memory.withdraw(self)
            self._buffer.settle()
        elif self.handed_over:
            self._memory.offer(self)

    def give_up_drafts(self) -> None:
        """Forgets drafts of an ended run although nobody has said that they are durable; who asks for them is refused."""
        if not self.keeps_drafts:
            return
        _log.warning("drafts_given_up", run_id=self.run_id, after=self._buffer.forgotten, through=self._buffer.last)
        self._buffer.forget(self._buffer.last)
        self._settle()

    @property
    def acked(self) -> int:
        """Through which offset an executor has said that drafts are durable."""
        return self._acked

    @property
    def keeps_drafts(self) -> bool:
        """Whether there are drafts here that somebody may still ask for."""
        return self._buffer.forgotten < self._buffer.last

    @property
    def handed_over(self) -> bool:
        """Whether the last reader has been given all drafts of a run that nobody works on any more. Acknowledgements may come late or never."""
        return not self.working and max(self._sent, self._buffer.forgotten) >= self._buffer.last

    async def _wait(self, wake_at: int, seconds: float | None) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiter, self._wake_at = waiter, wake_at
        timer = None if seconds is None else self._loop.call_later(seconds, _resolve, waiter)
        try:
            await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            _resolve(waiter)

    def _reader_gone(self) -> None:
        self._cancel_detach()
        self._keep_until = self._loop.time() + self._limits.kept_seconds
        self._detach_timer = self._loop.call_later(self._flow.detach_grace, self._on_detached)

    def _cancel_detach(self) -> None:
        if self._detach_timer is not None:
            self._detach_timer.cancel()
            self._detach_timer = None

    def _on_detached(self) -> None:
        if self.finished:
            if self._loop.time() < self._keep_until:
                self._detach_timer = self._loop.call_at(self._keep_until, self._on_detached)
            else:  # nobody came for the rest in all that time
                self.give_up_drafts()
            return
        _log.warning("run_detached_too_long", run_id=self.run_id)
        self._background.spawn(self.stop(payload_pb2.CANCEL_REASON_SHUTDOWN, self._limits.cancel_grace_seconds))
        self._reader_gone()

    # --- driving ---

    async def _drive(self, hooks: RunHooks) -> None:
        try:
            stream = await hooks.begin()
            self.side_effects = POSSIBLE_SIDE_EFFECTS
            await self._pump(stream, hooks)
        except ProtocolViolation as violation:
            # I19, rules 6 and 7: a bad stream fails the run and nothing of the bad event goes out.
            _log.error("run_broke_the_contract", run_id=self.run_id, rule=violation.rule, code=violation.code)
            self._finish(violation_draft(violation, self.side_effects))
        except asyncio.CancelledError:
            if not self.token.is_cancelled and not self.finished:
                self._fail(InternalError("The harness cancelled its own work.", code="adapter_defect"))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it ends this run and no other (I23)
            self._fail(error)
        finally:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            self._late.end()
            # The turn's input and tokens are not kept longer than they are of use.
            self._hooks = None
            hooks.released()

    async def _pump(self, stream: Stream, hooks: RunHooks) -> None:
        accept, append, count = self._lifecycle.accept, self._buffer.append, 0
        try:
            await self._wait_for_space()
            async for draft in stream:
                count += 1
                if count >= DRAFTS_PER_SLICE:
                    # I23: also of a run that is over, whose provider may say what it likes until it is stopped.
                    count = 0
                    await asyncio.sleep(0)
                if self._closed:
                    self._late.add()
                    continue
                entries = accept(draft)
                if len(entries) == 1 and entries[0] is draft:
                    # Plain text, as most events are.
                    full = append(draft)
                    if self._waiter is not None and self._buffer.last >= self._wake_at:
                        self._wake()
                else:
                    full = await self._admit(entries, hooks)
                if full:
                    await self._wait_for_space()
        finally:
            await self._close(stream)
        if not self._closed:
            raise missing_terminal()

    async def _admit(self, entries: tuple[event_pb2.EventDraft, ...], hooks: RunHooks) -> bool:
        for entry in entries:
            admitted = await hooks.admit(entry)
            # Once a cancel has begun, its terminal is the only event that may still come.
            if self.token.is_cancelled:
                self._late.add()
            elif admitted is not None:
                self._buffer.append(admitted)
        if self._lifecycle.ended:
            self._closed = True
            self._linger_after_terminal()
        if self._lifecycle.ended or self._buffer.last >= self._wake_at:
            self._wake()
        return self._buffer.is_full and not self._lifecycle.ended

    def _linger_after_terminal(self) -> None:
        # The adapter may still tidy up after its last event, but not for ever.
        if self._task is not None:
            self._loop.call_later(self._limits.stop_seconds, self._task.cancel)

    async def _wait_for_space(self) -> None:
        # Backpressure: the provider is not read until the control plane has stored what it has, of this run or of others.
        try:
            while True:
                if self._memory.is_full:
                    self._memory.make_room()
                if not self._buffer.is_full:
                    return
                self._space = self._loop.create_future()
                if self._memory.is_full:
                    self._memory.wait(self, self._space)
                await self._space
        finally:
            self._space = None
            self._memory.leave(self)

    async def _close(self, stream: Stream) -> None:
        close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(self._limits.stop_seconds):
                await close()
        except Exception as error:  # noqa: BLE001 - the run has its end; what went wrong while closing is for the log
            _log.warning("stream_not_closed", run_id=self.run_id, error=describe(error))

    # --- ending ---

    def _fail(self, error: BaseException) -> None:
        _log.error("run_failed", run_id=self.run_id, error=describe(error))
        if not self.finished and not self.token.is_cancelled:
            failure = classified(error)
            if failure.side_effects is None and self.side_effects == NO_SIDE_EFFECTS:
                failure.side_effects = NO_SIDE_EFFECTS
            self._finish(failed_draft(failure, showed_output=self._buffer.last > self._announced))

    def _finish(self, terminal: event_pb2.EventDraft) -> None:
        for entry in self._lifecycle.accept(terminal):
            self._buffer.append(entry)
        self._wake()

    def _on_deadline(self) -> None:
        self._background.spawn(self.stop(payload_pb2.CANCEL_REASON_DEADLINE, self._limits.cancel_grace_seconds))

    async def stop(self, reason: "payload_pb2.CancelReason.ValueType", grace: float) -> None:
        """Ends the run, if it has not ended, and its provider's work: after it returns, `finished` holds and no event follows (I12).
        Idempotent; the first reason counts. `grace` is how many seconds the provider may take to stop in order.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(reason, grace))
        await asyncio.shield(self._stopping)

    async def _stop(self, reason: "payload_pb2.CancelReason.ValueType", grace: float) -> None:
        hooks, task = self._hooks, self._task
        if task is None:
            raise RuntimeError("a run is stopped only after it was started")
        told = None
        if not self.finished:
            self.token.cancel(reason)
            self._closed = True
            if hooks is not None:
                told = await self._tell(hooks, reason, grace)
        task.cancel()
        if not task.done():
            await asyncio.wait({task}, timeout=self._limits.stop_seconds)
        if not task.done():
            self.abandoned = True
            _log.error("provider_ignores_cancellation", run_id=self.run_id)
        if told is not None:
            self.side_effects = told
        if not self.finished:
            cancelled = payload_pb2.RunCancelled(reason=reason, side_effect_status=self.side_effects)
            self._finish(event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_cancelled=cancelled)))

    async def _tell(
        self, hooks: RunHooks, reason: "payload_pb2.CancelReason.ValueType", grace: float
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        try:
            async with asyncio.timeout(grace):
                return await hooks.told_to_cancel(reason)
        except Exception as error:  # noqa: BLE001 - the run is stopped all the same
            _log.warning("cancel_not_passed_on", run_id=self.run_id, error=describe(error))
            return None


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _nothing(_: HostedRun) -> None:
    """Nobody listens."""
