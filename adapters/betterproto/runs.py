"""One run: its drafts get offsets, are kept until they are durable, and whoever follows is given them in order."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import islice

from betterproto_contracts.harness.common.v1 import ErrorCategory, SideEffectStatus
from betterproto_contracts.harness.event.v1 import CancelReason, EventBatch, EventDraft, EventPayload, RunCancelled
from betterproto_contracts.harness.runtime.v1 import RuntimeLimits
from grpclib.const import Status as Code

from adapters.betterproto.errors import Failure, Refusal, out_of_range, stale
from adapters.betterproto.lifecycle import Lifecycle

MAX_BATCH_DRAFTS = 512
MAX_BATCH_BYTES = 512 * 1024
# Drafts of a provider that never waits, before other runs get their turn.
SLICE = 128
# How long a provider that was cancelled may go on before it is given up.
STOP_SECONDS = 2.0
# How long drafts of a run that has ended are kept after its last reader left, however short the grace in which a run goes on without one.
KEEP_SECONDS = 120.0
Play = Callable[["Run"], AsyncGenerator[EventDraft, None]]
_log = logging.getLogger(__name__)


class Run:
    """A run from its start until its runtime forgets it."""

    def __init__(self, run_id: str, turn: int, generation: int, limits: RuntimeLimits) -> None:
        self.run_id, self.turn, self.generation = run_id, turn, generation
        self.side_effects = SideEffectStatus.NONE
        # Offset of the newest draft, and through which offset drafts are durable and forgotten.
        self.last = self.acked = 0
        self._max_drafts = limits.max_unacked_events or 16_384
        self._max_bytes = limits.max_unacked_bytes or 16 * 1024 * 1024
        self._detach_grace = limits.detach_grace_seconds or 60
        self._drafts: deque[tuple[EventDraft, int]] = deque()
        self._bytes = 0
        self._lifecycle = Lifecycle()
        self._changed = asyncio.Event()
        self._reader = 0
        self._reason: CancelReason | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._keep_until = 0.0

    @property
    def finished(self) -> bool:
        """Whether the terminal has its offset."""
        return self._lifecycle.ended

    @property
    def working(self) -> bool:
        """Whether its provider may still be at work."""
        return self._task is not None and not self._task.done()

    def start(self, before: Callable[[], Awaitable[None]], play: Play, seconds: float) -> None:
        """Begins: `before` is awaited, then `play` gives the drafts. It ends after `seconds` at the latest."""
        self._task = asyncio.create_task(self._drive(before, play))
        self._timer("deadline", max(0.0, seconds), CancelReason.DEADLINE)
        self._reader_gone()

    def take_over(self, generation: int) -> None:
        """A call of an executor of this generation came: from now on an older one is refused."""
        if generation < self.generation:
            raise stale("Another executor has taken the run.")
        if generation > self.generation:
            self.generation = generation
            self._wake()

    async def newer_executor(self, generation: int, seconds: float) -> bool:
        """Whether an executor of a higher generation is there, or comes within the bound."""
        try:
            async with asyncio.timeout(seconds):
                while self.generation <= generation:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def ended(self) -> None:
        """Returns when the terminal has its offset."""
        while not self.finished:
            await self._changed.wait()

    # --- reading ---

    async def follow(self, after: int) -> AsyncGenerator[EventBatch, None]:
        """Batches after offset `after`, to the terminal. A younger call ends this one; leaving does not end the run."""
        if after < self.acked:
            raise out_of_range("offset_forgotten", f"Drafts up to offset {self.acked} are durable and forgotten.")
        if after > self.last:
            raise out_of_range("offset_ahead", f"The run has no draft after offset {self.last}.")
        self._reader += 1
        reader, position = self._reader, after
        self._cancel_timer("detached")
        self._wake()
        try:
            while reader == self._reader:
                position = max(position, self.acked)
                drafts = self._read(position)
                if drafts:
                    yield EventBatch(first_offset=position + 1, drafts=drafts)
                    position += len(drafts)
                elif self.finished:
                    return
                else:
                    await self._changed.wait()
            message = "A younger stream of this run took over."
            raise Refusal(Code.ABORTED, "stream_superseded", message)
        finally:
            if reader == self._reader and (self._drafts or not self.finished):
                self._reader_gone()

    def _read(self, position: int) -> list[EventDraft]:
        drafts: list[EventDraft] = []
        size = 0
        start = position - self.acked
        for draft, bytes_of_it in islice(self._drafts, start, start + MAX_BATCH_DRAFTS):
            size += bytes_of_it
            if drafts and size > MAX_BATCH_BYTES:
                break
            drafts.append(draft)
        return drafts

    def acknowledge(self, through: int) -> None:
        """Forgets drafts up to offset `through`; a lower one than before changes nothing."""
        if through > self.last:
            raise out_of_range("offset_ahead", f"The run has no draft after offset {self.last}.")
        while self.acked < through:
            self._bytes -= self._drafts.popleft()[1]
            self.acked += 1
        self._wake()

    # --- driving ---

    async def _drive(self, before: Callable[[], Awaitable[None]], play: Play) -> None:
        try:
            await before()
            self.side_effects = SideEffectStatus.POSSIBLE
            async with aclosing(play(self)) as drafts:
                await self._pump(drafts)
        except asyncio.CancelledError:
            # Unless it was stopped, the turn has cancelled itself.
            self._fail(Failure(ErrorCategory.INTERNAL, "adapter_defect", "The harness cancelled its own work."))
            raise
        except Failure as failure:
            self._fail(failure)
        except Refusal as refusal:
            self._fail(Failure(refusal.category, refusal.reason.lower(), refusal.message))
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this run and no other, and says nothing of itself
            _log.error("run failed: %s", type(error).__name__)
            message = "The harness failed unexpectedly."
            self._fail(Failure(ErrorCategory.INTERNAL, "adapter_defect", message))
        finally:
            self._cancel_timer("deadline")

    async def _pump(self, drafts: AsyncIterator[EventDraft]) -> None:
        count = 0
        async for draft in drafts:
            for accepted in self._lifecycle.accept(draft):
                self._append(accepted)
            if self.finished:
                return
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)
            # Nothing is dropped: past the bound the provider is not read any further.
            while len(self._drafts) >= self._max_drafts or self._bytes >= self._max_bytes:
                await self._changed.wait()
        raise Failure(ErrorCategory.PROTOCOL, "missing_terminal", "The harness ended the turn without saying how.")

    def _append(self, draft: EventDraft) -> None:
        size = len(bytes(draft))
        self._drafts.append((draft, size))
        self._bytes += size
        self.last += 1
        self._wake()

    def _fail(self, failure: Failure) -> None:
        if self._reason is None and not self.finished:
            self._finish(failure.draft(showed_output=self.last > 0))

    def _finish(self, terminal: EventDraft) -> None:
        for draft in self._lifecycle.accept(terminal):
            self._append(draft)

    async def stop(self, reason: CancelReason, grace: float = STOP_SECONDS) -> None:
        """Ends the run if it has not ended: after this no event follows. Idempotent; the first reason counts."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(reason, grace))
        await asyncio.shield(self._stopping)

    async def _stop(self, reason: CancelReason, grace: float) -> None:
        if self._task is None or (self.finished and self._task.done()):
            return
        self._reason = reason
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=max(grace, 0.1))
        if not self.finished:
            cancelled = RunCancelled(reason=reason, side_effect_status=self.side_effects)
            self._finish(EventDraft(payload=EventPayload(run_cancelled=cancelled)))

    def _wake(self) -> None:
        # Whoever waits holds the event that was current; a new one is for who waits next.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _timer(self, name: str, seconds: float, reason: CancelReason) -> None:
        self._cancel_timer(name)
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, self._on_timer, reason)

    def _reader_gone(self) -> None:
        self._keep_until = asyncio.get_running_loop().time() + KEEP_SECONDS
        self._timer("detached", self._detach_grace, CancelReason.SHUTDOWN)

    def _on_timer(self, reason: CancelReason) -> None:
        left = self._keep_until - asyncio.get_running_loop().time()
        if self.finished and left > 0:
            # The run may have ended a moment ago, when the grace of a run that works was all but over.
            self._timer("detached", left, reason)
        elif self.finished:
            # Nobody came for the rest in all that time; who asks for it now is told that it is forgotten.
            self.acknowledge(self.last)
        elif self._stopping is None:
            self._timer("detached", KEEP_SECONDS, reason)
            _log.warning("run %s is stopped: %s", self.run_id, reason.name)
            self._stopping = asyncio.create_task(self._stop(reason, STOP_SECONDS))

    def _cancel_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
