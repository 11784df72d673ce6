"""One binding's runtime in a host: fences its turns, lets one operation work at a time, initialises once (worker protocol)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from adapters.sdk.cancellation import Deadline
from adapters.sdk.contract import HarnessRuntime, RuntimeConstruction, Turn
from adapters.sdk.errors import HarnessError, UnavailableError, classified
from adapters.sdk.events import session_updated
from adapters.sdk.facade import FacadeAccess, FacadeChannels
from adapters.sdk.files import Files
from adapters.sdk.host import refusal
from adapters.sdk.host.background import Background
from adapters.sdk.host.bounds import within
from adapters.sdk.host.hooks import RunHooks
from adapters.sdk.host.limits import FlowLimits, HostLimits
from adapters.sdk.host.memory import DraftMemory
from adapters.sdk.host.native_session import NativeSession
from adapters.sdk.host.run import HostedRun
from adapters.sdk.logs import describe, get_logger
from adapters.sdk.thread_state import ThreadState
from adapters.sdk.tools import Tools
from harness.common.v1 import error_pb2, fence_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2

# How long an older turn's provider may take to stop in order when a younger turn is here (I27: cut off within 2 s).
SUPERSEDE_GRACE_SECONDS = 1.0
# What a cleanup leaves, as its caller is told.
_NOT_IN_TIME = "The adapter did not release the runtime in time."
_FAILED = "The adapter failed to release the runtime; its log says why."
_STILL_WORKS = "The provider of a run ignores its end and is still at work."
S = TypeVar("S")
_log = get_logger(__name__)


class RuntimeSlot:
    """A runtime object with its fence. It serves one binding, epoch and runtime generation for life."""

    __slots__ = (
        "_asked_tools",
        "_background",
        "_channels",
        "_cleaning",
        "_failure",
        "_initialized",
        "_limits",
        "_lock",
        "_memory",
        "_past",
        "_run",
        "_runtime",
        "_session",
        "_turn",
        "closed",
        "construction",
        "used_at",
    )

    def __init__(
        self,
        runtime: HarnessRuntime,
        construction: RuntimeConstruction,
        session: NativeSession,
        channels: FacadeChannels,
        limits: HostLimits,
        background: Background,
        memory: DraftMemory,
    ) -> None:
        self.construction = construction
        self.closed = False
        self.used_at = time.monotonic()
        self._runtime = runtime
        self._session = session
        self._channels = channels
        self._limits = limits
        self._background = background
        self._memory = memory
        self._lock = asyncio.Lock()
        self._initialized = False
        self._failure: HarnessError | None = None
        self._turn = 0
        self._run: HostedRun | None = None
        self._past: dict[str, HostedRun] | None = None
        self._asked_tools = set[str]()
        self._cleaning: asyncio.Task[str] | None = None

    # --- runs ---

    @property
    def busy(self) -> bool:
        """Whether a run works here, or an ended one has drafts nobody has stored yet."""
        run = self._run
        return self._lock.locked() or (run is not None and (run.working or run.keeps_drafts))

    @property
    def may_make_room(self) -> bool:
        """Whether a full host may drop it: nothing works here, and whoever read the last run has been given all of it."""
        return not self._lock.locked() and (self._run is None or self._run.handed_over)

    @property
    def working(self) -> bool:
        """Whether a run works here."""
        return self._run is not None and not self._run.finished

    def find(self, fence: fence_pb2.Fence) -> HostedRun | None:
        """The run of the fence, if it is here, after its generation was checked and taken over."""
        run = self._run
        if run is None or run.run_id != fence.run_id:
            run = self._past.get(fence.run_id) if self._past else None
        if run is None:
            return None
        if fence.run_generation < run.generation:  # I10
            raise refusal.stale_lease("Another executor has taken the run.")
        run.attach_executor(fence.run_generation)
        return run

    def admit(
        self,
        fence: fence_pb2.Fence,
        turn: runtime_pb2.TurnInput,
        decision: runtime_pb2.ResumeDecision | None,
        on_released: Callable[[HostedRun], None],
    ) -> HostedRun:
        """The run to follow: the one that is here, or a new one, which ends whatever an older turn still does (I6)."""
        known = self.find(fence)
        if known is not None:
            return known
        if fence.turn <= self._turn:  # I6: a turn belongs to one run, and an older one never works beside a younger
            raise refusal.stale_lease("A younger turn has reached this runtime.")
        # Whatever can be refused is refused before anything of the run is visible: a run that stands here and was never started would
        # be joined by every repetition of the call, and would hold its turn's place for ever.
        deadline = _deadline(turn)
        flow = FlowLimits.of(self.construction.context.limits)
        run = HostedRun(
            fence.run_id,
            fence.turn,
            fence.run_generation,
            deadline,
            flow,
            self._limits,
            self._background,
            self._memory,
        )
        run.on_released = on_released
        older = self._run
        hooks = _TurnHooks(self, run, older, self._make_turn(fence, turn, run, deadline), decision)
        run.start(hooks)
        if older is not None:
            self._remember(older)
        self._turn, self._run = fence.turn, run
        self.used_at = time.monotonic()
        return run

    def _remember(self, run: HostedRun) -> None:
        if self._past is None:
            self._past = {}
        self._past[run.run_id] = run
        while len(self._past) > self._limits.remembered_runs:
            del self._past[next(iter(self._past))]

    def _make_turn(
        self, fence: fence_pb2.Fence, turn: runtime_pb2.TurnInput, run: HostedRun, deadline: Deadline
    ) -> Turn:
        return Turn(
            run_id=fence.run_id,
            number=fence.turn,
            message=turn.message,
            system_prompt=turn.system_prompt,
            files=turn.files,
            user_id=turn.user_id,
            conversation_id=turn.conversation_id,
            native_session_id=turn.native_session_id,
            thread_revision=turn.thread_revision,
            traceparent=fence.traceparent,
            deadline=deadline,
            cancellation=run.token,
            thread=ThreadState(self._access("state", self._channels.state, fence, turn, run)),
            tools=Tools(
                self.construction.context,
                self._access("tool", self._channels.tools, fence, turn, run),
                run.token,
                self._asked_tools,
            ),
            construction=self.construction,
            raw=turn,
            files_access=Files(self._access("files", self._channels.files, fence, turn, run)),
        )

    def _access(
        self,
        audience: str,
        stub: Callable[[str], S],
        fence: fence_pb2.Fence,
        turn: runtime_pb2.TurnInput,
        run: HostedRun,
    ) -> FacadeAccess[S] | None:
        """What the run needs to reach the facade; None without its address or a token for it."""
        stubs = [partial(stub, each.address) for each in self.construction.context.facades if each.audience == audience]
        token = next((each.value for each in turn.tokens if each.audience == audience), None)
        if not stubs or token is None:
            return None
        return FacadeAccess(stubs[0], fence, run, token, _deadline(turn), others=tuple(stubs[1:]))

    async def cancel(
        self, run: HostedRun, reason: "payload_pb2.CancelReason.ValueType", grace: float
    ) -> tuple[bool, "error_pb2.SideEffectStatus.ValueType"]:
        """Stops a run; says whether it had already ended, and what may have happened."""
        ended = run.finished
        await run.stop(reason, grace)
        return ended, run.side_effects

    # --- the other operations ---

    async def initialize(self, seconds: float) -> bool:
        """Prepares the runtime, once; False if it was. After a failure the same error again, until a restart (I20). Raises DeadlineError past `seconds`,
        what it waits for another operation included; the next call tries again.
        """
        async with within(seconds, "The runtime was not ready in time.", "initialize_timeout"), self._lock:
            return await self.prepare()

    async def prepare(self) -> bool:
        """`initialize` for whoever holds the lock."""
        if self._failure is not None:
            raise self._failure
        if self._initialized:
            return False
        try:
            await self._runtime.initialize()
        except Exception as error:
            if not isinstance(error, HarnessError):
                _log.error("initialize_failed", error=describe(error))
            self._failure = classified(error)
            raise self._failure from error
        self._initialized = True
        return True

    async def restart(self, seconds: float) -> None:
        """Releases what the provider holds, within `seconds`; refused while anything else works. Raises DeadlineError past the bound."""
        if self._lock.locked() or self.working:
            raise refusal.busy("A run or another operation is at work in this runtime.")
        async with self._lock:
            self._initialized, self._failure = False, None
            # I20, I35: a provider that does not let go must not hold the runtime, and with it its cleanup, for ever.
            async with within(seconds, "The runtime did not restart in time.", "restart_timeout"):
                await self._runtime.restart()

    async def pending_interrupt(self, seconds: float) -> runtime_pb2.PendingInterrupt | None:
        """The pause of the binding, or None. Raises DeadlineError past `seconds`."""
        async with within(seconds, "The runtime did not say in time what it waits for.", "pending_interrupt_timeout"):
            return await self._runtime.pending_interrupt()

    async def cleanup(self, seconds: float, reason: "payload_pb2.CancelReason.ValueType") -> str:
        """Ends the run, if any, and releases everything within `seconds`; what is left, in a sentence, empty when nothing is. Calls share the work, which
        goes on when a caller leaves; after one that was cut off or failed the next tries again (I20).
        """
        self.closed = True
        task = self._cleaning
        if task is None or (task.done() and _left(task)):
            task = self._cleaning = self._background.spawn(self._clean(seconds, reason))
        await asyncio.wait({task}, timeout=seconds)
        return _left(task)

    @property
    def unclean(self) -> bool:
        """Whether its release was tried and something is left."""
        return self._cleaning is not None and self._cleaning.done() and bool(_left(self._cleaning))

    async def _clean(self, seconds: float, reason: "payload_pb2.CancelReason.ValueType") -> str:
        deadline = time.monotonic() + seconds
        if self._run is not None:
            try:
                # I20: whatever a provider does with its half of the time, the other is for letting go.
                async with asyncio.timeout(seconds / 2):
                    await self._run.stop(reason, min(self._limits.cancel_grace_seconds, seconds / 4))
            except TimeoutError:
                _log.warning("run_not_stopped_in_time", run_id=self._run.run_id)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._release(seconds / 4)
        except TimeoutError:
            _log.error("cleanup_cut_off", seconds=round(seconds, 3), late=round(time.monotonic() - deadline, 3))
            return _NOT_IN_TIME
        except Exception as error:  # noqa: BLE001 - cleaning up never fails its caller; what is wrong is for the log
            _log.error("cleanup_failed", error=describe(error))
            return _FAILED
        # I20: what an adapter released of its own says nothing of a provider that goes on all the same.
        return _STILL_WORKS if any(run.working for run in self._runs()) else ""

    def _runs(self) -> Iterator[HostedRun]:
        if self._run is not None:
            yield self._run
        yield from (self._past or {}).values()

    async def _release(self, patience: float) -> None:
        if await self._is_free(patience):
            async with self._lock:
                await self._runtime.cleanup()
        else:
            # A stream or another operation never gives the lock back: what can be released is released all the same.
            await self._runtime.cleanup()

    async def _is_free(self, patience: float) -> bool:
        """Whether nothing is at work, or ends within `patience` seconds. Nothing begins after `closed`."""
        if self._run is not None and self._run.abandoned:
            return False
        try:
            async with asyncio.timeout(patience), self._lock:
                return True
        except TimeoutError:
            _log.error("operation_not_ended", seconds=round(patience, 3))
            return False

    # --- what a turn needs of the slot ---

    @property
    def lock(self) -> asyncio.Lock:
        """Held by the one operation at work."""
        return self._lock

    def open_stream(
        self, turn: Turn, decision: runtime_pb2.ResumeDecision | None
    ) -> AsyncIterator[event_pb2.EventDraft]:
        """The provider's stream of a turn."""
        return self._runtime.stream(turn) if decision is None else self._runtime.resume(turn, decision)

    async def tell(self, reason: "payload_pb2.CancelReason.ValueType") -> "error_pb2.SideEffectStatus.ValueType | None":
        """Passes a cancel on to the adapter."""
        return await self._runtime.cancel(reason)

    async def observe(self, draft: event_pb2.EventDraft) -> str | None:
        """The native id of a session event, validated by the provider's session manager."""
        return await self._session.observe(draft)

    async def open_session(self, turn: Turn) -> str:
        """The native session's name, if the host has to announce it before the turn's first event."""
        return await self._session.open(turn.native_session_id)


def _left(task: "asyncio.Task[str]") -> str:
    if not task.done():
        return _NOT_IN_TIME
    return _FAILED if task.cancelled() or task.exception() is not None else task.result()


def _deadline(turn: runtime_pb2.TurnInput) -> Deadline:
    try:
        return Deadline(turn.deadline.ToMicroseconds() / 1e6)
    except ValueError:
        issue = refusal.FieldIssue("turn.deadline", "timestamp", "This is no moment from year 1 to 9999.")
        raise refusal.invalid("The request is malformed at turn.deadline.", [issue]) from None


class _TurnHooks(RunHooks):
    """Ties one run to its runtime."""

    def __init__(
        self,
        slot: RuntimeSlot,
        run: HostedRun,
        older: HostedRun | None,
        turn: Turn,
        decision: runtime_pb2.ResumeDecision | None,
    ) -> None:
        self._slot = slot
        self._run = run
        self._older = older
        self._turn = turn
        self._decision = decision
        self._holds = False
        self._opened = False

    async def begin(self) -> AsyncIterator[event_pb2.EventDraft]:
        older, self._older = self._older, None
        if older is not None and older.working:
            await older.stop(payload_pb2.CANCEL_REASON_SUPERSEDED, SUPERSEDE_GRACE_SECONDS)
            if older.abandoned:
                raise UnavailableError("The runtime's older turn does not stop.", code="runtime_stuck")
        await self._slot.lock.acquire()
        self._holds = True
        await self._slot.prepare()
        native_id = await self._slot.open_session(self._turn)
        if native_id:
            self._turn = replace(self._turn, native_session_id=native_id)
            self._run.announce(session_updated(native_id))
        self._opened = True
        return self._slot.open_stream(self._turn, self._decision)

    async def told_to_cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        return await self._slot.tell(reason) if self._opened else None

    async def admit(self, draft: event_pb2.EventDraft) -> event_pb2.EventDraft | None:
        kind = draft.payload.WhichOneof("kind")
        if kind == "session_updated":
            native_id = await self._slot.observe(draft)
            if native_id is None:
                return None
            draft.native_session_id = native_id
        elif kind in ("run_completed", "run_interrupted") and not draft.HasField("pending_head"):
            pending = self._turn.thread.pending_head()
            if pending is not None:
                draft.pending_head.CopyFrom(pending)
        return draft

    def released(self) -> None:
        if self._holds:
            self._holds = False
            self._slot.lock.release()
        self._slot.used_at = time.monotonic()
