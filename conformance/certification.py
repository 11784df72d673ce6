"""One certification: finds out whom it has before it, decides what applies, runs the cases, and keeps what came of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from conformance import evidence, results
from conformance.capability_keys import SECTIONS
from conformance.cases import CASES, Case
from conformance.cases.registry import FIRST, MIDDLE
from conformance.drivers import driver_named
from conformance.drivers.driver import Driver
from conformance.failure import Broken, CannotExpressError, NotApplicableError, TargetError
from conformance.kit import Kit
from conformance.plane.binding import Binding, Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.target import Target
from conformance.results import FAILED, NOT_APPLICABLE, NOT_VERIFIED, PASSED, CaseResult
from conformance.rules import ADAPTER, WORKER
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import placement_pb2
from harness.worker.v1 import worker_service_pb2

# Seconds of one case; far beyond what any needs, and the end of one that waits for ever.
CASE_SECONDS = 120.0
PROBE_SECONDS = 20.0
# Cases of an adapter host that run side by side, each with bindings of its own.
AT_ONCE = 6
Listener = Callable[[CaseResult], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What to look at. Addresses are `unix:/path` or `host:port`; `descriptor` is a file or an address, for a worker."""

    target: str
    placement: str = ADAPTER
    sections: tuple[int, ...] = tuple(SECTIONS)
    driver: str = "reference"
    token: str = field(default="", repr=False)
    replica: str = ""
    descriptor: str = ""
    facades: str = ""


@dataclass(frozen=True, slots=True)
class Certification:
    """What came of it."""

    descriptor: descriptor_pb2.Descriptor
    verdict: str
    cases: Sequence[CaseResult]
    # The evidence (reference: certification).
    document: dict[str, Any]


class Certifier:
    """A certification under way: `async with Certifier(options) as it: await it.run(case)`. The pytest plugin runs its cases one by one."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.driver: Driver = driver_named(options.driver)
        self._canaries = Canaries(given=(options.token,) if options.token else ())
        self._stack = AsyncExitStack()
        self._replica: Target | None = None
        self._shared: Binding | None = None
        self._setting: Setting | None = None

    @property
    def setting(self) -> Setting:
        """What all cases share."""
        if self._setting is None:
            raise RuntimeError("a certification is entered before it is used")
        return self._setting

    async def __aenter__(self) -> "Certifier":
        """Connects. Raises TargetError if there is nobody, or nobody that can be certified."""
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _enter(self) -> None:
        options = self.options
        target = self._target(options.target)
        worker = options.placement == WORKER
        descriptor = await self._descriptor_of(target)
        if worker:
            await _check_worker(target, descriptor)
        elif options.replica:
            self._replica = self._target(options.replica)
            other = await _ask_descriptor(self._replica, "--replica")
            if other.adapter_version != descriptor.adapter_version or other.harness_id != descriptor.harness_id:
                raise TargetError(
                    "The replica serves another adapter, or another version of it.", "Give a replica of the target."
                )
        facades = await self._stack.enter_async_context(Facades(self._canaries, options.target, options.facades))
        self._setting = Setting(
            target,
            facades,
            descriptor,
            Observations(),
            worker,
            placement_pb2.PLACEMENT_SANDBOX_POD if worker else _placement(descriptor),
            self.driver.profile_settings(self._canaries.plant("profile-setting")),
            self.driver.options(),
        )
        if worker:
            self._shared = Binding(self._setting, target)

    def _target(self, address: str) -> Target:
        target = Target(_checked(address), self._canaries, self.options.token)
        self._stack.push_async_callback(target.close)
        return target

    async def _descriptor_of(self, target: Target) -> descriptor_pb2.Descriptor:
        source = self.options.descriptor
        if self.options.placement == ADAPTER or not source:
            return await _ask_descriptor(target, "--target", worker=self.options.placement == WORKER)
        if source.startswith("unix:") or not await asyncio.to_thread(Path(source).exists):
            return await _ask_descriptor(self._target(source), "--descriptor")
        return await asyncio.to_thread(_read_descriptor, Path(source))

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def bind(self) -> None:
        """Binds the worker, if no case does it."""
        if self._shared is not None and not self._shared.incarnation:
            await self._shared.create()

    async def run(self, case: Case) -> CaseResult:
        """Looks at one rule in one way."""
        reason = results.not_for(case, self.setting.descriptor, self.options.placement)
        if reason:
            return CaseResult(case, NOT_APPLICABLE, reason)
        kit = Kit(self.setting, self.driver, self._replica, self._shared)
        begun = time.monotonic()
        result, reason = await self._judged(case, kit)
        return CaseResult(case, result, reason[:500], round(time.monotonic() - begun, 3), kit.figures)

    async def _judged(self, case: Case, kit: Kit) -> tuple[str, str]:
        try:
            async with asyncio.timeout(CASE_SECONDS):
                try:
                    await case.work(kit)
                finally:
                    await kit.release()
        except TimeoutError:
            return FAILED, f"The case did not come to an end within {CASE_SECONDS:.0f} seconds."
        except Broken as broken:
            return FAILED, str(broken)
        except CannotExpressError as silent:
            return NOT_VERIFIED, str(silent)
        except NotApplicableError as other:
            return NOT_APPLICABLE, str(other)
        except grpc.aio.AioRpcError as error:
            return FAILED, f"A call ended with {error.code().name}."
        except Exception as error:  # noqa: BLE001 - a case that met what it did not expect did not pass
            return FAILED, f"The case met something unexpected: {type(error).__name__}: {error}"
        return PASSED, ""


def chosen(sections: Sequence[int]) -> list[Case]:
    """Cases of these sections, in the order of their running."""
    return sorted((case for case in CASES if case.rule.section in sections), key=lambda case: case.when)


async def certify(options: Options, listener: Listener) -> Certification:
    """Runs it all; `listener` hears of each case as it ends. Raises TargetError if it cannot begin."""
    started, begun = datetime.now(UTC), time.monotonic()
    made: list[CaseResult] = []

    def keep(result: CaseResult) -> None:
        made.append(result)
        listener(result)

    async with Certifier(options) as certifier:
        cases = chosen(options.sections)
        for case in [case for case in cases if case.when == FIRST]:
            keep(await certifier.run(case))
        await certifier.bind()
        await _side_by_side(certifier, [case for case in cases if case.when == MIDDLE], keep)
        for case in [case for case in cases if case.when > MIDDLE]:
            keep(await certifier.run(case))
        descriptor, replica = certifier.setting.descriptor, bool(options.replica)
    order = {case.id: place for place, case in enumerate(CASES)}
    made.sort(key=lambda result: order[result.case.id])
    document = _document(options, descriptor, made, replica=replica)
    document["started_at"] = started.isoformat(timespec="seconds").replace("+00:00", "Z")
    document["seconds"] = round(time.monotonic() - begun, 3)
    return Certification(descriptor, document["verdict"], made, document)


async def _side_by_side(certifier: Certifier, cases: Sequence[Case], keep: Listener) -> None:
    # A worker has one binding, and turns of it come one after the other.
    room = asyncio.Semaphore(AT_ONCE if certifier.options.placement == ADAPTER else 1)

    async def one(case: Case) -> None:
        async with room:
            keep(await certifier.run(case))

    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(one(case))


def _document(
    options: Options, descriptor: descriptor_pb2.Descriptor, made: Sequence[CaseResult], *, replica: bool
) -> dict[str, Any]:
    rules = results.rule_results(made, options.placement)
    capabilities = results.capability_results(rules, descriptor, options.placement)
    document: dict[str, Any] = {
        "kind": evidence.KIND,
        "schema": evidence.SCHEMA,
        "verdict": results.verdict(made, rules, options.sections),
        "adapter": {
            "harness_id": descriptor.harness_id,
            "adapter_version": descriptor.adapter_version,
            "sdk_name": descriptor.sdk_name,
            "sdk_version": descriptor.sdk_version,
            "contract_version": evidence.CONTRACT_VERSION,
            "descriptor_digest": evidence.descriptor_digest(descriptor),
        },
        "placement": options.placement,
        "replica": replica,
        "kit": {"version": evidence.kit_version(), "cases_digest": evidence.cases_digest()},
        "driver": options.driver,
        "sections": sorted(options.sections),
        "totals": {
            result: sum(each.result == result for each in made)
            for result in (PASSED, FAILED, NOT_APPLICABLE, NOT_VERIFIED)
        },
        "capabilities": {
            each.key: {"claimed": each.claimed, "result": each.result, "reason": each.reason, "rules": list(each.rules)}
            for each in capabilities
        },
        "rules": {
            each.rule.id: {"section": each.rule.section, "result": each.result, "reason": each.reason} for each in rules
        },
        "cases": [
            {
                "id": each.case.id,
                "rule": each.case.rule.id,
                "section": each.case.rule.section,
                "title": each.case.title,
                "result": each.result,
                "reason": each.reason,
                "seconds": each.seconds,
                "figures": each.figures,
            }
            for each in made
        ],
    }
    return {"evidence_id": evidence.evidence_id(document), **document}


# --- whom it has before it ---


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not (address.startswith("unix:") and len(address) > len("unix:")) and not (host and port.isdigit()):
        raise TargetError(f"{address!r} is no address.", "Give unix:/path or host:port.")
    return address


def _placement(descriptor: descriptor_pb2.Descriptor) -> "placement_pb2.Placement.ValueType":
    hosted = [each for each in descriptor.placements if each != placement_pb2.PLACEMENT_SANDBOX_POD]
    return hosted[0] if hosted else placement_pb2.PLACEMENT_PROVIDER_MANAGED


async def _ask_descriptor(target: Target, option: str, *, worker: bool = False) -> descriptor_pb2.Descriptor:
    request = adapter_service_pb2.GetDescriptorRequest()
    try:
        response = await target.adapter.GetDescriptor(request, timeout=PROBE_SECONDS, metadata=target.metadata)
    except grpc.aio.AioRpcError as error:
        raise _not_a_target(error, target, option, worker=worker) from None
    return response.descriptor


def _not_a_target(error: grpc.aio.AioRpcError, target: Target, option: str, *, worker: bool) -> TargetError:
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        message = f"Nobody answers at {target.address} ({option})."
        return TargetError(message, "Is the adapter running, and is this its address?", unreachable=True)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return TargetError(f"{target.address} wants a token.", "Give the adapter's token with --token-file.")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        if worker:
            hint = "Say with --descriptor what the adapter claims: an AdapterService of it, or a file of protobuf JSON."
            return TargetError(f"The worker at {target.address} does not say what its adapter claims.", hint)
        hint = "A worker of a sandbox is certified with --placement worker."
        return TargetError(f"What serves {target.address} is no adapter: it has no AdapterService.", hint)
    return TargetError(f"GetDescriptor at {target.address} ended with {code.name}.", "See the adapter's own log.")


async def _check_worker(target: Target, descriptor: descriptor_pb2.Descriptor) -> None:
    request = worker_service_pb2.GetReadinessRequest()
    try:
        response = await target.worker.GetReadiness(request, timeout=PROBE_SECONDS, metadata=target.metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            hint = "An adapter host is certified with --placement adapter."
            raise TargetError(f"What serves {target.address} is no worker: it has no WorkerService.", hint) from None
        raise _not_a_target(error, target, "--target", worker=True) from None
    if response.bound:
        raise TargetError(
            f"The worker at {target.address} is bound already.",
            "Start a fresh one: a worker serves one binding for life.",
        )
    if (response.harness_id, response.adapter_version) != (descriptor.harness_id, descriptor.adapter_version):
        raise TargetError(
            "The worker hosts another adapter, or another version, than the descriptor is of.",
            "Give the descriptor of the worker's adapter.",
        )


def _read_descriptor(path: Path) -> descriptor_pb2.Descriptor:
    try:
        return json_format.Parse(path.read_bytes(), descriptor_pb2.Descriptor())
    except (OSError, UnicodeDecodeError, json_format.ParseError) as error:
        raise TargetError(
            f"--descriptor: {path} holds no descriptor: {error}", "Give a file of protobuf JSON."
        ) from None
