"""Clearing a conversation: close the epoch, end its runs, release its runtime, open the next epoch (run protocol, Clear; I5)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from harness.adapter.v1 import adapter_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.runs import placing
from services.runs.cancelling import Canceller
from services.runs.clients.sessions import Binding
from services.runs.engine import Engine, binding_fence
from services.runs.intent import CancelReason
from services.runs.plan import Plan

MAX_ROUNDS: Final = 20
"""Looks at a closing binding until nobody holds or awaits its slot; nobody new gets in meanwhile (I35)."""
CLOSE_SECONDS: Final = 10.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear came to. `closed_binding_id` is empty when nothing was used since the last one."""

    cleared: bool
    closed_binding_id: str
    next_epoch: int


class Clearer:
    """Clears conversations. Any number of helpers may work on the same clear; every step may be repeated."""

    def __init__(self, engine: Engine, canceller: Canceller) -> None:
        self._engine = engine
        self._canceller = canceller

    async def clear(self, subject: str, agent_id: str, conversation_id: str) -> Cleared:
        """Clear the caller's conversation; a new one may start once this is answered."""
        begun = await self._engine.sessions.begin_clear(subject, agent_id, conversation_id)
        if not begun.closing:
            epoch = begun.binding.epoch if begun.HasField("binding") else 1
            return Cleared(cleared=False, closed_binding_id="", next_epoch=epoch)
        # I5: closing first; from here no reservation, head or facade write of this epoch is accepted.
        next_epoch = await self.help(begun.binding)
        return Cleared(cleared=True, closed_binding_id=begun.binding.binding_id, next_epoch=next_epoch)

    async def help(self, binding: Binding) -> int:
        """Bring a clear that has begun to its end, whoever began it; the next epoch."""
        for _ in range(MAX_ROUNDS):
            await self._end_runs(binding)
            await self._release(binding)
            try:
                return await self._engine.sessions.finish_clear(binding.binding_id)
            except HarnessError as error:
                # The slot is held or awaited still: by whom, the binding says.
                if error.reason is not Reason.HARNESS_SESSION_CONFLICT:
                    raise
            binding, archived = await self._engine.sessions.get(binding.binding_id)
            if archived:  # somebody else finished it
                return binding.epoch + 1
        raise HarnessError(
            Reason.UNAVAILABLE, "The conversation could not be cleared yet: it will be; ask again.", retry_after=1.0
        )

    async def _end_runs(self, binding: Binding) -> None:
        run_ids = [waiting.run_id for waiting in binding.waiting]
        if binding.HasField("active"):
            run_ids.append(binding.active.run_id)
        for run_id in run_ids:
            await self._canceller.end_reservation(binding, run_id, CancelReason.SESSION_CLEARED)

    async def _release(self, binding: Binding) -> None:
        """End the provider's session and the runtime. What cannot be reached is left to its own end: it reaches nothing of ours any more."""
        if not binding.HasField("pin"):
            return
        try:
            plan = await self._plan(binding)
        except HarnessError as error:
            _log.warning("plan_not_found", binding_id=binding.binding_id, reason=error.reason.value)
            return
        # I29: a provider that cannot be reached keeps nobody's sandbox alive.
        await _attempted("session_not_closed", binding, self._close_session(binding, plan))
        await _attempted("runtime_not_released", binding, placing.release_runtime(self._engine, binding, plan))

    async def _plan(self, binding: Binding) -> Plan:
        pin = binding.pin
        version = await self._engine.catalog.version(binding.agent_id, pin.agent_version)
        return Plan(version, await self._engine.catalog.profile(pin.harness_id, pin.profile_id))

    async def _close_session(self, binding: Binding, plan: Plan) -> None:
        if not binding.native_session_id or not plan.profile.adapter_address:
            return
        request = adapter_service_pb2.CloseSessionRequest(
            fence=binding_fence(binding.binding_id, binding.epoch, max(binding.runtime_generation, 1)),
            native_session_id=binding.native_session_id,
            agent_id=binding.agent_id,
        )
        if plan.profile.HasField("profile_settings"):
            request.profile_settings.CopyFrom(plan.profile.profile_settings)
        host = plan.host(plan.profile.adapter_address)
        await self._engine.runtimes.close_session(host, request, CLOSE_SECONDS)


async def _attempted(failure: str, binding: Binding, work: Awaitable[None]) -> None:
    try:
        await work
    except HarnessError as error:
        _log.warning(failure, binding_id=binding.binding_id, reason=error.reason.value)
