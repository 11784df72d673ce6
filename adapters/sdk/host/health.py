"""How an adapter is: every look bounded, none in the way of another, none started twice (contract, Health contract; I23, I35)."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from google.protobuf import timestamp_pb2

from adapters.sdk.contract import HarnessAdapter
from adapters.sdk.errors import HarnessError
from adapters.sdk.health import CAPACITY, DEPENDENCY, NAMES, Impaired, Probe
from adapters.sdk.host.dependencies import dependency_problem
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.lifecycle.text import cleaned
from adapters.sdk.logs import describe, get_logger
from harness.common.v1 import health_pb2

MAX_CHECKS = 32
# Of an adapter's own, how many are looked at.
MAX_LOOKED_AT = 64
# Of those, how many a report has room for beside what it speaks of always, and the host's word on runtimes that are not clean.
MAX_SHOWN = MAX_CHECKS - len(NAMES) - 1
MAX_REASON_CHARACTERS = 500
# Of the names whose last success is remembered.
MAX_REMEMBERED = 2 * MAX_LOOKED_AT
# What a look at the adapter as a whole is called when it fails itself.
ADAPTER = "adapter"
# And the one of the host at runtimes of which something is left.
CLEANUP = "cleanup"
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_HEALTHY = health_pb2.HEALTH_STATUS_HEALTHY
_DEGRADED = health_pb2.HEALTH_STATUS_DEGRADED
_UNHEALTHY = health_pb2.HEALTH_STATUS_UNHEALTHY
_HANGS = "The check did not end in time and was cut off."
_STILL_HANGS = "An earlier check ignored its end and still hangs."
_log = get_logger(__name__)


class HealthLooks:
    """Looks at one adapter and its host. Belongs to the event loop; touches no runtime."""

    def __init__(self, adapter: HarnessAdapter, registry: RuntimeRegistry) -> None:
        self._adapter = adapter
        self._registry = registry
        # By name: looks that were cut off and did not end. None is started again beside one of these.
        self._stuck: dict[str, asyncio.Task[Any]] = {}
        self._succeeded: dict[str, int] = {}  # Unix nanoseconds, by name
        self._under_way: asyncio.Task[list[health_pb2.HealthCheck]] | None = None

    async def report(self, seconds: float) -> health_pb2.HealthReport:
        """The report within `seconds`, whatever the adapter does. Who asks meanwhile gets the look that is under way."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.get_running_loop().create_task(self._look(seconds))
        await asyncio.wait({self._under_way}, timeout=seconds + 0.05)
        checks = self._under_way.result() if self._under_way.done() else [_check(ADAPTER, _UNHEALTHY, _HANGS)]
        return self._report(checks)

    async def _look(self, seconds: float) -> list[health_pb2.HealthCheck]:
        deadline = time.monotonic() + seconds
        said = await self._bounded({ADAPTER: self._adapter.health}, seconds / 2)
        found = said[ADAPTER]
        if isinstance(found, health_pb2.HealthCheck):
            return [found]
        given: Sequence[health_pb2.HealthCheck | Probe] = tuple(found)
        listed = given[:MAX_LOOKED_AT]
        probes = {each.name: each.look for each in listed if isinstance(each, Probe)}
        looked = await self._bounded(probes, max(0.0, deadline - time.monotonic()))
        # What a probe returns is nothing: it is well.
        results = {name: one or _check(name, _HEALTHY, "") for name, one in looked.items()}
        checks = [results[each.name] if isinstance(each, Probe) else _tidied(each) for each in listed]
        if len(given) > MAX_LOOKED_AT:
            # I35: what is not looked at may be what is wrong, so the adapter cannot be said to be well.
            over = f"The adapter names {len(given)} checks; only the first {MAX_LOOKED_AT} are looked at."
            checks.insert(0, _check(ADAPTER, _DEGRADED, over))
        return checks

    async def _bounded(self, looks: Mapping[str, Callable[[], Awaitable[Any]]], seconds: float) -> dict[str, Any]:
        """What each look returned, or a check that says why it did not."""
        tasks: dict[str, asyncio.Task[Any]] = {}
        results: dict[str, Any] = {}
        for name, look in looks.items():
            if name in self._stuck and not self._stuck[name].done():
                results[name] = _check(name, _UNHEALTHY, _STILL_HANGS)  # I35: at most one of each hangs
            else:
                self._stuck.pop(name, None)
                tasks[name] = asyncio.get_running_loop().create_task(_made(look))
        if tasks:
            # Not `timeout`: that would wait for a look that ignores its cancellation.
            await asyncio.wait(tasks.values(), timeout=seconds)
        for name, task in tasks.items():
            if task.done():
                results[name] = _outcome(name, task)
            else:
                task.cancel()
                task.add_done_callback(_ended)
                self._stuck[name] = task
                results[name] = _check(name, _UNHEALTHY, _HANGS)
        return results

    def _report(self, looked_at: list[health_pb2.HealthCheck]) -> health_pb2.HealthReport:
        checks = _shown(looked_at)
        named = {check.name for check in checks}
        for check in self._of_host():
            if check.name not in named:
                checks.append(check)
                named.add(check.name)
        # The contract names what a health check is about: what nobody looks at is said to be unknown, not well.
        checks += [
            _check(name, health_pb2.HEALTH_STATUS_UNSPECIFIED, "The adapter has no check of this.")
            for name in NAMES
            if name not in named
        ]
        now = timestamp_pb2.Timestamp()
        now.GetCurrentTime()
        # I35: everything that was looked at counts, also what the report has no room for.
        all_checks = [*looked_at, *checks]
        for check in all_checks:
            self._note(check, now)
        status = max([_HEALTHY, *(check.status for check in all_checks)])
        limits = self._registry.limits
        return health_pb2.HealthReport(
            status=status,
            checks=checks,
            capacity=health_pb2.Capacity(active=self._registry.active_runs, limit=limits.max_runs),
            checked_at=now,
        )

    def _of_host(self) -> list[health_pb2.HealthCheck]:
        missing = dependency_problem(self._adapter.descriptor.dependencies)
        most = self._registry.limits.max_runs
        full = self._registry.active_runs >= most
        unclean = self._registry.unclean
        left = f"Of {unclean} ended runtimes something is left; it is tried again. The host's log says why."
        return [
            *([_check(CLEANUP, _DEGRADED, left)] if unclean else []),
            _check(DEPENDENCY, _UNHEALTHY if missing else _HEALTHY, missing),
            _check(
                CAPACITY, _DEGRADED if full else _HEALTHY, f"All {most} runs of this host are taken." if full else ""
            ),
        ]

    def _note(self, check: health_pb2.HealthCheck, now: timestamp_pb2.Timestamp) -> None:
        if check.HasField("last_success_at"):
            return
        if check.status == _HEALTHY:
            if check.name in self._succeeded or len(self._succeeded) < MAX_REMEMBERED:
                self._succeeded[check.name] = now.ToNanoseconds()
            check.last_success_at.CopyFrom(now)
        elif check.name in self._succeeded:
            check.last_success_at.FromNanoseconds(self._succeeded[check.name])


def _shown(looked_at: list[health_pb2.HealthCheck]) -> list[health_pb2.HealthCheck]:
    """Those a report has room for, in their order: what every report speaks of, and the worst. The last says so where any had to be left out."""
    if len(looked_at) <= MAX_SHOWN:
        return list(looked_at)
    order = sorted(enumerate(looked_at), key=lambda item: (item[1].name not in (*NAMES, ADAPTER), -item[1].status))
    kept, left_out = order[: MAX_SHOWN - 1], order[MAX_SHOWN - 1 :]
    bad = sum(check.status > _HEALTHY for _, check in left_out)
    said = f"The report has no room for {len(left_out)} of {len(looked_at)} checks; {bad} of those are not well."
    return [*(check for _, check in sorted(kept, key=lambda item: item[0])), _check(ADAPTER, _DEGRADED, said)]


async def _made(look: Callable[[], Awaitable[Any]]) -> Any:
    return await look()


def _ended(task: "asyncio.Task[Any]") -> None:
    # What it still came to was told as hanging already.
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.info("health_check_ended_late", error=describe(error))


def _outcome(name: str, task: "asyncio.Task[Any]") -> Any:
    if task.cancelled():
        return _check(name, _UNHEALTHY, "The check was cancelled.")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, Impaired):
        return _check(name, _DEGRADED, str(error))
    if isinstance(error, HarnessError):
        return _check(name, _UNHEALTHY, error.message)
    _log.error("health_check_failed", name=name, error=describe(error))  # I22: of its text nothing leaves
    return _check(name, _UNHEALTHY, "The adapter's health check failed unexpectedly.")


def _check(name: str, status: "health_pb2.HealthStatus.ValueType", reason: str) -> health_pb2.HealthCheck:
    check = health_pb2.HealthCheck(name=name if _NAME.fullmatch(name) else ADAPTER, status=status)
    check.reason = cleaned(reason)[:MAX_REASON_CHARACTERS]
    return check


def _tidied(said: health_pb2.HealthCheck) -> health_pb2.HealthCheck:
    """A check of the adapter's own, within the contract: one bad word in it would cost the whole report."""
    check = _check(said.name, said.status, said.reason)
    if said.status not in (health_pb2.HEALTH_STATUS_UNSPECIFIED, _HEALTHY, _DEGRADED, _UNHEALTHY):
        check.status = _UNHEALTHY
    if said.HasField("last_success_at"):
        check.last_success_at.CopyFrom(said.last_success_at)
    return check
