"""One call through its provider: tries, time, size, and which failure may be tried again (I11, I35)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from services.common.clock import Clock
from services.common.logs import get_logger, log_incident
from services.runs.clients.tool_provider import GrpcProviders
from services.runs.tools.grant import Grant, tries_of
from services.runs.tools.providers.builtin import BUILTIN, BuiltinProvider
from services.runs.tools.providers.port import ProviderCall, ProviderFailed, ToolProvider, too_large
from services.runs.tools.record import Ended

PAUSES: Final = (0.1, 0.3, 1.0, 2.0)
"""Seconds between the tries of an idempotent tool."""
MAX_UNDER_WAY: Final = 1_000
"""Calls one process makes at once, whatever their providers (I35)."""
_log = get_logger(__name__)


class Invoker:
    """Calls tools. It decides nothing about who may."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._builtin = BuiltinProvider(clock)
        self._services = GrpcProviders()

    async def invoke(
        self, grant: Grant, call: ProviderCall, give_up_at: float, may_try_again: Callable[[], Awaitable[bool]]
    ) -> tuple[Ended, int]:
        """How the call ended, and in how many tries. `give_up_at` is wall time: the run's deadline. Raises nothing but a cancellation."""
        failure = ProviderFailed("tool_timeout", "The run's time was over.", passing=False, reached=False)
        provider, tries, made, reached = self._provider(grant), tries_of(grant), 0, False
        for number in range(tries):
            seconds = min(float(grant.timeout_seconds), give_up_at - self._clock.wall())
            if seconds <= 0:
                break
            made += 1
            try:
                ended = await self._try(provider, replace(call, timeout_seconds=seconds))
                return _bounded(ended, call.max_result_bytes), made
            except ProviderFailed as failed:
                failure, reached = failed, reached or failed.reached
            if not failure.passing or made == tries:
                break
            await asyncio.sleep(PAUSES[min(number, len(PAUSES) - 1)])
            if not await may_try_again():  # I12: after a cancel nothing is begun
                break
        return _ended(failure, reached=reached, idempotent=grant.descriptor.idempotent), made

    async def close(self) -> None:
        """Close the channels to providers."""
        await self._services.close()

    def _provider(self, grant: Grant) -> ToolProvider:
        if grant.provider == BUILTIN:
            return self._builtin
        return self._services.at(grant.provider, grant.provider_token)

    async def _try(self, provider: ToolProvider, call: ProviderCall) -> Ended:
        sent, seconds = False, f"{call.timeout_seconds:.3g} seconds"
        try:
            async with asyncio.timeout(call.timeout_seconds):
                await provider.reach()
                sent = True
                return await provider.invoke(call)
        except TimeoutError:
            if not sent:
                message = f"The tool's provider could not be reached within {seconds}."
                raise ProviderFailed("tool_unavailable", message, passing=True, reached=False) from None
            message = f"The tool did not answer within {seconds}."
            raise ProviderFailed("tool_timeout", message, passing=True, reached=True) from None
        except ProviderFailed:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of a provider ends its call, not the broker
            incident = log_incident(_log, "tool_provider_failed", error, tool_id=call.tool_id)
            raise ProviderFailed(
                "internal",
                f"Internal error. Give the operator this incident id: {incident}",
                passing=False,
                reached=sent,
            ) from None


def pool_of(grant: Grant) -> str:
    """What shares one bound on the calls made at once: all tools of a provider; each built-in tool by itself, for they hang on different things."""
    return f"{BUILTIN}:{grant.descriptor.tool_id}" if grant.provider == BUILTIN else grant.provider


def _bounded(ended: Ended, limit: int) -> Ended:
    size = len(ended.result.encode("utf-8", "surrogatepass"))
    if size <= limit:
        return ended
    return too_large(limit)


def _ended(failure: ProviderFailed, *, reached: bool, idempotent: bool) -> Ended:
    """A failure as the call's outcome; `reached` says whether any try may have begun. What may have had its effect is not offered for a retry (I11),
    and what never began is told as that, whatever the tool.
    """
    may_have_happened = reached and not idempotent
    note = " Side effects are possible: do not repeat it." if may_have_happened else ""
    if not reached:
        note = " The call did not begin."
    return Ended.failed(failure.code, failure.message + note, retryable=failure.passing and not may_have_happened)
