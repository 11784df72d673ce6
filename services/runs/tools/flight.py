"""Calls that are under way here: invoked in the background, renewed meanwhile, their outcome written (run protocol, Tools; I11, I35)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from services.common.clock import Clock
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.store import StoreUnavailable
from services.common.tasks import BackgroundTasks
from services.common.tracing import current_traceparent
from services.runs.patience import PAUSES
from services.runs.run import Run
from services.runs.tools import arguments, audit, metrics, record
from services.runs.tools.grant import Grant
from services.runs.tools.invoking import MAX_UNDER_WAY, Invoker, pool_of
from services.runs.tools.liveness import RENEW_SHARE
from services.runs.tools.providers.port import ProviderCall
from services.runs.tools.record import CallRecord, Ended, State
from services.runs.tools.store import CallStore

MAX_WRITES: Final = 8
"""Tries to write an outcome while the store is away."""
_log = get_logger(__name__)


class Flights:
    """The calls that one process makes. `holder` names it on their records; `ttl` is when another process counts it as dead; `per_provider` is how
    many of one provider's it makes at once, so that one that hangs leaves room for the others' (I35).
    """

    def __init__(
        self,
        calls: CallStore,
        invoker: Invoker,
        tasks: BackgroundTasks,
        clock: Clock,
        *,
        holder: str,
        ttl: float,
        per_provider: int,
    ) -> None:
        self._calls = calls
        self._invoker = invoker
        self._tasks = tasks
        self._clock = clock
        self._holder = holder
        self._ttl = ttl
        self._per_provider = per_provider
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._of_provider: Counter[str] = Counter()
        self._draining = False

    def under_way(self, key: str) -> asyncio.Task[None] | None:
        """The call with this key, while it is made here."""
        return self._under_way.get(key)

    def check_room(self, grant: Grant) -> None:
        """Whether a call of the tool can begin here. Errors: `unavailable` while the process stops, `capacity` while it makes as many calls as it may,
        of this provider or of all. Nothing has begun then, and the same call may be made again.
        """
        if self._draining or self._tasks.closed:  # I33
            raise HarnessError(Reason.UNAVAILABLE, "This process stops: ask again.", retry_after=1.0, not_begun=True)
        if len(self._under_way) >= MAX_UNDER_WAY:  # I35
            raise _full(f"This process makes {MAX_UNDER_WAY} tool calls already: ask again.")
        if self._of_provider[pool_of(grant)] >= self._per_provider:  # I35
            metrics.PROVIDER_FULL.labels(grant.descriptor.tool_id).inc()
            raise _full(f"This process makes {self._per_provider} calls of the tool's provider already: ask again.")

    async def drain(self, seconds: float) -> None:
        """Begin no call any more, and wait for those under way, whoever still asks for them: an outcome that is written is none that got lost (I33).
        After `seconds` they are left to the end of the process.
        """
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                while self._under_way:
                    await asyncio.wait(set(self._under_way.values()))
        except TimeoutError:
            _log.warning("tool_calls_cut", calls=len(self._under_way), seconds=seconds)

    def begin(
        self,
        run: Run,
        grant: Grant,
        begun: CallRecord,
        given: dict[str, Any],
        may_try_again: Callable[[], Awaitable[bool]],
    ) -> None:
        """Invoke in the background: a runtime that goes away does not take the outcome with it."""
        task = self._tasks.spawn("tool_call", self._flight(run, grant, begun, given, may_try_again))
        pool = pool_of(grant)
        self._under_way[begun.key] = task
        self._of_provider[pool] += 1
        metrics.UNDER_WAY.inc()

        def landed(_: asyncio.Task[None]) -> None:
            metrics.UNDER_WAY.dec()
            self._of_provider[pool] -= 1
            if not self._of_provider[pool]:
                del self._of_provider[pool]
            if self._under_way.get(begun.key) is task:
                del self._under_way[begun.key]

        task.add_done_callback(landed)

    async def _flight(
        self,
        run: Run,
        grant: Grant,
        begun: CallRecord,
        given: dict[str, Any],
        may_try_again: Callable[[], Awaitable[bool]],
    ) -> None:
        provider_call = ProviderCall(
            tool_id=begun.tool_id,
            arguments=given,
            idempotency_key=record.effect_of(begun.key),
            user_id=run.owner or "",
            settings=arguments.plain(grant.settings),
            timeout_seconds=grant.timeout_seconds,
            max_result_bytes=grant.max_result_bytes,
            traceparent=current_traceparent(),
        )
        give_up_at = (run.deadline_at or self._now()) / 1000
        work = asyncio.create_task(self._invoker.invoke(grant, provider_call, give_up_at, may_try_again))
        try:
            held = await self._renewed_until(work, begun)
            if held is None:
                return  # another broker has the call, or it was given up: what the record says is told
            ended, attempts = work.result()
            await self.end(held, record.done(held, ended, self._now(), attempts=attempts))
        finally:
            work.cancel()
            await asyncio.wait({work})

    async def _renewed_until(self, work: asyncio.Task[tuple[Ended, int]], held: CallRecord) -> CallRecord | None:
        """The record once the work is done, renewed meanwhile; None when it was taken from this broker."""
        while True:
            done, _ = await asyncio.wait({work}, timeout=self._ttl * RENEW_SHARE)
            if done:
                return held
            try:
                renewed = await self._calls.put(held, record.renewed(held))
                if renewed is None:
                    renewed = await self._calls.get(held.key)  # an answer that was lost, or another broker
            except StoreUnavailable as error:
                _log.warning("tool_call_not_renewed", run_id=held.run_id, error=type(error).__name__)
                continue
            if renewed is None or not self._is_held(held, renewed):
                return None
            held = renewed

    async def end(self, before: CallRecord, after: CallRecord) -> None:
        """The outcome by compare-and-set: an outcome that is there never changes (I11). Whoever was faster, the record says what is told."""
        unclear = False
        for attempt in range(MAX_WRITES):
            try:
                written = await self._calls.put(before, after)
                if written is None:
                    found = await self._calls.get(before.key)
                    if found is not None and self._is_held(before, found):
                        # A renewal of ours had been applied, and its answer was lost.
                        before, after = found, replace(after, renewals=found.renewals)
                        continue
                    # Ours as well, if a try was applied whose answer was lost.
                    written = (
                        found if unclear and found is not None and replace(found, rev=after.rev) == after else None
                    )
            except StoreUnavailable:
                if attempt == MAX_WRITES - 1:
                    raise
                unclear = True
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                continue
            if written is not None:
                audit.ended(written)
            return

    def _is_held(self, before: CallRecord, found: CallRecord) -> bool:
        """Whether this process still holds the call as it held it before, whatever was renewed since."""
        return found.state is State.STARTED and found.broker == self._holder and found.beginning == before.beginning

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)


def _full(message: str) -> HarnessError:
    return HarnessError(Reason.CAPACITY, message, retry_after=1.0, not_begun=True)
