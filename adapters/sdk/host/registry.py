"""The runtimes of one process: created, found by their fence, ended by a higher generation, dropped when idle (worker protocol, Fence)."""

import asyncio
import time
from collections import OrderedDict

from adapters.sdk.contract import HarnessAdapter, RuntimeConstruction
from adapters.sdk.errors import HarnessError, classified
from adapters.sdk.facade import FacadeChannels
from adapters.sdk.host import refusal
from adapters.sdk.host.background import Background
from adapters.sdk.host.bounds import within
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.memory import DraftMemory
from adapters.sdk.host.native_session import NativeSession
from adapters.sdk.host.run import HostedRun
from adapters.sdk.host.runtime import RuntimeSlot
from adapters.sdk.logs import describe, get_logger
from adapters.sdk.session import BindingView, ProviderSessionContext
from harness.common.v1 import fence_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

PROTOCOL_VERSION = 1
_SUPERSEDED = payload_pb2.CANCEL_REASON_SUPERSEDED
_SHUTDOWN = payload_pb2.CANCEL_REASON_SHUTDOWN
Generation = tuple[int, int]
_log = get_logger(__name__)


class RuntimeRegistry:
    """All runtimes of this process's incarnation. All methods belong to the event loop."""

    def __init__(self, adapter: HarnessAdapter, incarnation: str, limits: HostLimits) -> None:
        self.incarnation = incarnation
        self.limits = limits
        self.stopping = False
        self._adapter = adapter
        self._channels = FacadeChannels()
        self._background = Background()
        self._memory = DraftMemory(limits.max_buffered_bytes)
        # Least recently used first.
        self._slots: OrderedDict[str, RuntimeSlot] = OrderedDict()
        # Those that are ended and not yet clean, of any generation, so that a repeated Cleanup waits for the work, or tries again what was cut off.
        self._closing: OrderedDict[BindingView, RuntimeSlot] = OrderedDict()
        self._creating: dict[str, asyncio.Future[None]] = {}
        # The highest (epoch, runtime generation) seen of a binding, also of runtimes that are gone.
        self._highest: OrderedDict[str, Generation] = OrderedDict()
        # Runs that were cancelled before they came.
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._active: set[HostedRun] = set()
        self._sweeper: asyncio.Task[None] | None = None
        # Set when the last run is released while the host drains.
        self._idle: asyncio.Event | None = None

    @property
    def active_runs(self) -> int:
        """Runs whose provider is at work."""
        return len(self._active)

    @property
    def runtimes(self) -> int:
        """Runtimes kept."""
        return len(self._slots)

    @property
    def unclean(self) -> int:
        """Runtimes that are ended and of which something is left, although their release was tried."""
        return sum(slot.unclean for slot in self._closing.values())

    # --- runtimes ---

    async def create(self, fence: fence_pb2.Fence, context: runtime_pb2.RuntimeContext, seconds: float) -> bool:
        """Makes the runtime of the fence; False if it is there. A higher generation ends the older runtime, a lower one is refused.
        Raises DeadlineError past `seconds`; the next call tries again.
        """
        _check_protocol(fence)
        async with within(seconds, "The runtime was not made in time.", "create_timeout"):
            return await self._create(fence, context)

    async def _create(self, fence: fence_pb2.Fence, context: runtime_pb2.RuntimeContext) -> bool:
        if self.stopping:
            raise refusal.stopping()
        while (pending := self._creating.get(fence.binding_id)) is not None:
            await asyncio.wait({pending})
        generation = _generation(fence)
        highest = self._highest.get(fence.binding_id, (0, 0))
        if generation < highest:  # I5, I27: what was replaced never comes back
            raise refusal.stale_lease("A younger runtime of this binding has been here.")
        slot = self._slots.get(fence.binding_id)
        if slot is not None and generation == highest and not slot.closed:
            self._slots.move_to_end(fence.binding_id)
            return False
        pending = asyncio.get_running_loop().create_future()
        self._creating[fence.binding_id] = pending
        try:
            await self._replace(fence, context, slot)
        finally:
            del self._creating[fence.binding_id]
            pending.set_result(None)
        return True

    async def _replace(
        self, fence: fence_pb2.Fence, context: runtime_pb2.RuntimeContext, older: RuntimeSlot | None
    ) -> None:
        self._make_room()
        self._note_generation(fence)
        if older is not None:
            self._drop(fence.binding_id, older)
        binding = _view(fence)
        construction = RuntimeConstruction(binding, context)
        try:
            runtime = await self._adapter.create_runtime(construction)
        except Exception as error:
            if not isinstance(error, HarnessError):
                _log.error("create_runtime_failed", error=describe(error))
            raise classified(error) from error
        sessions = NativeSession(
            self._adapter.session_manager,
            self._adapter.descriptor.session_id_style,
            ProviderSessionContext(binding, context),
        )
        self._slots[fence.binding_id] = RuntimeSlot(
            runtime, construction, sessions, self._channels, self.limits, self._background, self._memory
        )

    def _make_room(self) -> None:
        if len(self._slots) < self.limits.max_runtimes:
            return
        # I35: executors acknowledge seldom, so an ended run that was read to its end must not count as work, or a host is full of such runs.
        idle = next((item for item in self._slots.items() if item[1].may_make_room), None)
        if idle is None:
            raise refusal.capacity(f"All {self.limits.max_runtimes} runtimes of this host are at work.")
        self._drop(*idle)

    def _note_generation(self, fence: fence_pb2.Fence) -> None:
        self._highest[fence.binding_id] = _generation(fence)
        self._highest.move_to_end(fence.binding_id)
        while len(self._highest) > max(self.limits.remembered, self.limits.max_runtimes):
            self._highest.popitem(last=False)

    def _drop(self, binding_id: str, slot: RuntimeSlot) -> None:
        # From here on nothing reaches it; its cleanup goes on beside.
        self._slots.pop(binding_id, None)
        self._close_slot(slot)
        self._background.spawn(self._clean(slot, self.limits.cleanup_seconds, _SUPERSEDED))

    def _close_slot(self, slot: RuntimeSlot) -> None:
        slot.closed = True
        self._closing[slot.construction.binding] = slot
        while len(self._closing) > self.limits.remembered:
            binding, _ = self._closing.popitem(last=False)
            _log.error(
                "unclean_runtime_forgotten", binding_id=binding.binding_id, generation=binding.runtime_generation
            )

    async def _clean(self, slot: RuntimeSlot, seconds: float, reason: "payload_pb2.CancelReason.ValueType") -> str:
        left = await slot.cleanup(seconds, reason)
        if not left:
            self._closing.pop(slot.construction.binding, None)
        return left

    def find(self, fence: fence_pb2.Fence) -> RuntimeSlot:
        """The runtime of the fence. Raises a refusal: STALE_LEASE for an older one, runtime_unknown if it never was
        here, runtime_gone if it is here no more.
        """
        _check_protocol(fence)
        highest = self._highest.get(fence.binding_id, (0, 0))
        if _generation(fence) < highest:
            raise refusal.stale_lease("A younger runtime of this binding has been here.")
        slot = self._slots.get(fence.binding_id)
        if _generation(fence) != highest:
            raise refusal.runtime_unknown()
        if slot is None or slot.closed:
            raise refusal.runtime_gone()  # I11
        return slot

    async def cleanup(self, fence: fence_pb2.Fence, seconds: float) -> str:
        """Ends the runtime of the fence, and what is left of the binding's older ones; what is left then, in a sentence, empty when nothing is.
        One that is not here is clean (I20).
        """
        slot: RuntimeSlot | None = None
        try:
            slot = self.find(fence)
        except refusal.Refusal as reason:
            if reason.reason not in ("runtime_unknown", "runtime_gone"):
                raise
        if slot is not None:
            self._slots.pop(fence.binding_id, None)
            self._close_slot(slot)
        # I20: nobody asks for an older generation any more, so whoever asks for this one hears of what is left of them.
        unclean = [slot for binding, slot in self._closing.items() if _covers(fence, binding)]
        left = await asyncio.gather(*(self._clean(slot, seconds, _SHUTDOWN) for slot in unclean))
        return next(filter(None, left), "")

    # --- runs ---

    def start(
        self,
        fence: fence_pb2.Fence,
        incarnation: str,
        turn: runtime_pb2.TurnInput,
        decision: runtime_pb2.ResumeDecision | None = None,
    ) -> HostedRun:
        """The run of the fence, started if it is not here yet (I6)."""
        _check_run(fence)
        if incarnation != self.incarnation:  # I11: what was issued to a dead process is not started by its successor
            raise refusal.incarnation_mismatch()
        slot = self.find(fence)
        if slot.find(fence) is None:
            if (fence.binding_id, fence.run_id) in self._cancelled:  # I12
                raise refusal.run_cancelled()
            if self.stopping:
                raise refusal.stopping()
            if len(self._active) >= self.limits.max_runs:
                raise refusal.capacity(f"This host works on {self.limits.max_runs} runs already.")
        run = slot.admit(fence, turn, decision, self._released)
        if run.working:
            self._active.add(run)
        self._slots.move_to_end(fence.binding_id)
        return run

    def _released(self, run: HostedRun) -> None:
        self._active.discard(run)
        if not self._active and self._idle is not None:
            self._idle.set()

    def attach(self, fence: fence_pb2.Fence, incarnation: str) -> HostedRun:
        """The run of the fence, which must be here."""
        _check_run(fence)
        if incarnation != self.incarnation:
            raise refusal.incarnation_mismatch()
        run = self.find(fence).find(fence)
        if run is None:
            raise refusal.run_unknown()
        return run

    def known(self, fence: fence_pb2.Fence) -> HostedRun:
        """The run of the fence, for an acknowledgement."""
        _check_run(fence)
        run = self.find(fence).find(fence)
        if run is None:
            raise refusal.run_unknown()
        return run

    def find_to_cancel(self, fence: fence_pb2.Fence) -> tuple[RuntimeSlot, HostedRun] | None:
        """The run to stop, or None: then a later start of it is refused (I12), whether or not its runtime is here."""
        _check_run(fence)
        key = (fence.binding_id, fence.run_id)
        try:
            slot = self.find(fence)
        except refusal.Refusal:
            self._remember_cancelled(key)
            raise
        run = slot.find(fence)
        if run is None:
            self._remember_cancelled(key)
            return None
        return slot, run

    def _remember_cancelled(self, key: tuple[str, str]) -> None:
        self._cancelled[key] = None
        self._cancelled.move_to_end(key)
        while len(self._cancelled) > self.limits.remembered:
            self._cancelled.popitem(last=False)

    # --- life ---

    def begin_sweeping(self) -> None:
        """Starts dropping runtimes that have been idle for long."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        idle = self.limits.runtime_idle_seconds
        while True:
            await asyncio.sleep(max(0.05, min(idle / 4, 60.0)))
            self.drop_idle(time.monotonic() - idle)
            self.clean_again()

    def drop_idle(self, unused_since: float) -> None:
        """Drops runtimes not used since that moment of the monotonic clock."""
        for binding_id, slot in list(self._slots.items()):
            if slot.used_at > unused_since:
                break
            if slot.busy:
                self._slots.move_to_end(binding_id)
            else:
                self._drop(binding_id, slot)

    def clean_again(self) -> None:
        """Tries again to release what an earlier try left: of a runtime that was replaced or dropped nobody else may ask (I20)."""
        for slot in [slot for slot in self._closing.values() if slot.unclean]:
            self._background.spawn(self._clean(slot, self.limits.cleanup_seconds, _SHUTDOWN))

    async def drain(self, seconds: float) -> None:
        """Takes no new work and waits at most `seconds` for what is at work; the rest is cancelled (I33)."""
        self.stopping = True
        if self._active:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                _log.warning("runs_cut_off", count=len(self._active))
        await asyncio.gather(*(run.stop(_SHUTDOWN, 1.0) for run in list(self._active)))

    async def close(self) -> None:
        """Releases every runtime; bounded by the cleanup time (I20)."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        slots, self._slots = list(self._slots.values()), OrderedDict()
        await asyncio.gather(*(slot.cleanup(self.limits.cleanup_seconds, _SHUTDOWN) for slot in slots))
        await self._background.close(self.limits.cleanup_seconds)
        await self._channels.close()


def _covers(fence: fence_pb2.Fence, binding: BindingView) -> bool:
    """Whether the binding's runtime is the fence's or an older one."""
    return binding.binding_id == fence.binding_id and (binding.epoch, binding.runtime_generation) <= _generation(fence)


def _view(fence: fence_pb2.Fence) -> BindingView:
    return BindingView(fence.binding_id, fence.epoch, fence.runtime_generation)


def _generation(fence: fence_pb2.Fence) -> Generation:
    return fence.epoch, fence.runtime_generation


def _check_protocol(fence: fence_pb2.Fence) -> None:
    if fence.protocol_version != PROTOCOL_VERSION:
        raise refusal.mismatch(f"This process speaks version {PROTOCOL_VERSION} of the worker protocol only.")


def _check_run(fence: fence_pb2.Fence) -> None:
    if not fence.run_id or not fence.turn or not fence.run_generation:
        raise refusal.invalid("The fence names no run: run_id, turn and run_generation are required here.")
