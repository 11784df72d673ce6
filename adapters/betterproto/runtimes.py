"""The runtimes of this process: one per binding, found by their fence, one operation at a time in each (worker protocol)."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TypeVar

from betterproto_contracts.harness.common.v1 import ErrorCategory, Fence, SideEffectStatus, ThreadPersistence
from betterproto_contracts.harness.event.v1 import CancelReason, EventDraft
from betterproto_contracts.harness.runtime.v1 import (
    PendingInterrupt,
    ResumeDecision,
    RuntimeContext,
    RuntimeLimits,
    TurnInput,
)
from grpclib.const import Status as Code

from adapters.betterproto import errors, player
from adapters.betterproto.errors import Failure, Refusal
from adapters.betterproto.facades import Channels, Facade, ThreadState, ToolBroker
from adapters.betterproto.memory import Pause
from adapters.betterproto.runs import Run

MAX_RUNTIMES = 1_000
MAX_RUNS = 500
MAX_REMEMBERED = 10_000
MAX_PAST_RUNS = 8
CLEANUP_SECONDS = 10.0
Key = TypeVar("Key")
Value = TypeVar("Value")
SUPERSEDE_SECONDS = 1.0


class Runtime:
    """One binding's runtime. It serves one epoch and runtime generation for life."""

    def __init__(self, context: RuntimeContext, channels: Channels) -> None:
        self.context = context
        self.used_at = time.monotonic()
        self._channels = channels
        self._lock = asyncio.Lock()
        self._initialized = False
        self._turn = 0
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._pause: Pause | None = None

    @property
    def run(self) -> Run | None:
        """The youngest run."""
        return next(reversed(self._runs.values()), None)

    @property
    def working(self) -> bool:
        """Whether its run or another operation is at work."""
        return self._lock.locked() or (self.run is not None and self.run.working)

    def initialize(self) -> bool:
        """Prepares it, which here is nothing but remembering; whether this call did it."""
        done, self._initialized = not self._initialized, True
        return done

    def find(self, fence: Fence) -> Run | None:
        """The run of the fence if it is here, taken over by the caller's generation."""
        run = self._runs.get(fence.run_id)
        if run is not None:
            run.take_over(fence.run_generation)
        return run

    def start(self, fence: Fence, turn: TurnInput, decision: ResumeDecision | None) -> Run:
        """The run of the fence: the one that is here, or a new one, which ends what an older turn still does."""
        known = self.find(fence)
        if known is not None:
            return known
        if fence.turn <= self._turn:
            raise errors.stale("A younger turn has reached this runtime, or this one belongs to another run.")
        run = Run(fence.run_id, fence.turn, fence.run_generation, self.context.limits or RuntimeLimits())
        older, self._turn = self.run, fence.turn
        self._runs[run.run_id] = run
        while len(self._runs) > MAX_PAST_RUNS:
            self._runs.popitem(last=False)
        self.used_at = time.monotonic()
        deadline = turn.deadline or datetime.now(UTC)
        seconds = (deadline - datetime.now(deadline.tzinfo)).total_seconds()

        async def before() -> None:
            if older is not None and older.working:
                await older.stop(CancelReason.SUPERSEDED, SUPERSEDE_SECONDS)
                if older.working:
                    raise Failure(ErrorCategory.UNAVAILABLE, "runtime_stuck", "The older turn does not stop.")

        async def play(run: Run) -> AsyncGenerator[EventDraft, None]:
            async with self._lock:
                self._initialized = True
                async for draft in player.play(self._turn_of(run, fence, turn, decision)):
                    yield draft

        run.start(before, play, seconds)
        return run

    def _turn_of(self, run: Run, fence: Fence, turn: TurnInput, decision: ResumeDecision | None) -> player.Turn:
        context = self.context
        blueprint = context.blueprint
        options = blueprint.harness.options if blueprint and blueprint.harness else None
        thread = blueprint.thread if blueprint else None

        def facade(audience: str) -> Facade:
            return Facade(audience, run, fence, turn, context, self._channels)

        return player.Turn(
            run_id=run.run_id,
            number=fence.turn,
            message=turn.message,
            state=ThreadState(facade("state")),
            tools=ToolBroker(facade("tool"), context),
            has_head=turn.thread_revision > 0,
            durable=thread is None or thread.persistence is not ThreadPersistence.EPHEMERAL,
            faults=bool(context.profile_settings and context.profile_settings.to_dict().get("allow_faults") is True),
            greeting=str(options.to_dict().get("greeting", "")) if options else "",
            decision=decision,
            kept=self._pause,
            keep=self._keep,
        )

    def _keep(self, pause: Pause | None) -> None:
        self._pause = pause

    def pending_interrupt(self) -> PendingInterrupt | None:
        """The pause of the last turn, if it had one here."""
        pause = self._pause
        return pause and PendingInterrupt(interrupt_id=pause.interrupt_id, revision=1, run_id=pause.run_id)

    async def restart(self) -> None:
        """Releases what a provider would hold; refused while anything works. The conversation is in thread state."""
        if self.working:
            raise errors.busy("A run or another operation is at work in this runtime.")
        async with self._lock:
            self._initialized = False

    async def end(self, reason: CancelReason, seconds: float) -> None:
        """Ends its run within `seconds`. Idempotent."""
        if self.run is not None:
            await self.run.stop(reason, seconds)


class Runtimes:
    """All runtimes of this process's incarnation."""

    def __init__(self) -> None:
        self.stopping = False
        self._channels = Channels()
        # Least recently used first; what is remembered of bindings outlives their runtimes.
        self._runtimes: OrderedDict[str, Runtime] = OrderedDict()
        self._highest: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> int:
        """Runs at work."""
        return sum(runtime.run is not None and runtime.run.working for runtime in self._runtimes.values())

    def create(self, fence: Fence, context: RuntimeContext) -> bool:
        """Makes the runtime of the fence; False if it is there. A higher generation ends the older one, a lower one is refused."""
        self._check_stopping()
        generation, highest = self._generations(fence)
        if generation == highest and fence.binding_id in self._runtimes:
            return False
        older = self._runtimes.pop(fence.binding_id, None)
        if older is not None:
            self._end_beside(older)
        self._make_room()
        _note(self._highest, fence.binding_id, generation)
        self._runtimes[fence.binding_id] = Runtime(context, self._channels)
        return True

    def find(self, fence: Fence) -> Runtime:
        """The runtime of the fence. `runtime_unknown` if it never was here, `runtime_gone` if it is here no more."""
        generation, highest = self._generations(fence)
        if generation != highest:
            raise errors.missing("runtime_unknown", "No runtime of this binding, epoch and generation was ever here.")
        runtime = self._runtimes.get(fence.binding_id)
        if runtime is None:
            raise errors.missing("runtime_gone", "The runtime of this binding was here and is no more.")
        self._runtimes.move_to_end(fence.binding_id)
        return runtime

    def _generations(self, fence: Fence) -> tuple[tuple[int, int], tuple[int, int]]:
        generation = (fence.epoch, fence.runtime_generation)
        highest = self._highest.get(fence.binding_id, (0, 0))
        if generation < highest:
            raise errors.stale("A younger runtime of this binding has been here.")
        return generation, highest

    def start(self, fence: Fence, turn: TurnInput, decision: ResumeDecision | None = None) -> Run:
        """The run of the fence, started if it is not here yet."""
        runtime = self.find(fence)
        if runtime.find(fence) is None:
            if (fence.binding_id, fence.run_id) in self._cancelled:
                message = "The run was cancelled before it started."
                raise Refusal(Code.FAILED_PRECONDITION, "run_cancelled", message, ErrorCategory.CANCELLED)
            self._check_stopping()
            if self.active >= MAX_RUNS:
                raise errors.full(f"This process works on {MAX_RUNS} runs already.")
        return runtime.start(fence, turn, decision)

    def known(self, fence: Fence) -> Run:
        """The run of the fence, which must be here."""
        run = self.find(fence).find(fence)
        if run is None:
            raise errors.missing("run_unknown", "This runtime knows nothing of the run.")
        return run

    async def cancel(self, fence: Fence, reason: CancelReason, grace: float) -> tuple[bool, SideEffectStatus]:
        """Stops the run of the fence, or keeps it from starting. Whether it had ended, and what may have happened."""
        key = (fence.binding_id, fence.run_id)
        try:
            run = self.find(fence).find(fence)
        except Refusal:
            _note(self._cancelled, key, None)
            raise
        if run is None:
            _note(self._cancelled, key, None)
            return False, SideEffectStatus.NONE
        ended = run.finished
        await run.stop(reason, grace)
        return ended, run.side_effects

    async def cleanup(self, fence: Fence, seconds: float) -> None:
        """Ends the runtime of the fence; one that is not here is clean."""
        generation, highest = self._generations(fence)
        runtime = self._runtimes.pop(fence.binding_id, None) if generation == highest else None
        if runtime is not None:
            await runtime.end(CancelReason.SHUTDOWN, seconds)

    async def drain(self, seconds: float) -> None:
        """Takes no new run, gives those at work `seconds`, then cancels them and releases everything."""
        self.stopping = True
        runs = [runtime.run for runtime in self._runtimes.values() if runtime.run is not None]
        if runs:
            await asyncio.wait([asyncio.create_task(run.ended()) for run in runs], timeout=seconds)
        runtimes = list(self._runtimes.values())
        await asyncio.gather(*(runtime.end(CancelReason.SHUTDOWN, 1.0) for runtime in runtimes), *self._ending)
        self._channels.close()

    def _check_stopping(self) -> None:
        if self.stopping:
            message = "This process is stopping."
            raise Refusal(Code.UNAVAILABLE, "unavailable", message, retryable=True)

    def _make_room(self) -> None:
        if len(self._runtimes) < MAX_RUNTIMES:
            return
        idle = next((binding for binding, runtime in self._runtimes.items() if not runtime.working), None)
        if idle is None:
            raise errors.full(f"All {MAX_RUNTIMES} runtimes of this process are at work.")
        del self._runtimes[idle]

    def _end_beside(self, runtime: Runtime) -> None:
        task = asyncio.create_task(runtime.end(CancelReason.SUPERSEDED, CLEANUP_SECONDS))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _note(kept: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
