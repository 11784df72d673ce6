"""One certification: finds out whom it has before it, decides what applies, runs the cases, and keeps what came of them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
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
from conformance.drivers import driver_named, file_of
from conformance.drivers.driver import Driver
from conformance.drivers.guarded import Guarded
from conformance.failure import Broken, CannotExpressError, NotApplicableError, TargetError
from conformance.kit import Kit, is_claimed
from conformance.plain import plain_text
from conformance.plane.binding import Binding, Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.machine import SEES, TargetProcess
from conformance.plane.observations import Observations
from conformance.plane.refusals import Refusal
from conformance.plane.target import Garbled, Target
from conformance.results import FAILED, NOT_APPLICABLE, NOT_VERIFIED, PASSED, CaseResult
from conformance.rules import ADAPTER, WORKER
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import placement_pb2
from harness.worker.v1 import worker_service_pb2

# Seconds of one case; far beyond what any needs, and the end of one that waits for ever.
CASE_SECONDS = 120.0
# Cases that may fail to come to an end before the kit gives the target up (I35): a silent one would hold it for hours.
MAX_ENDLESS = 6
PROBE_SECONDS = 20.0
_OTHER_CONTRACT = "It speaks another contract, or another version of it."
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
    # Process id of the target, on this machine, so that the kit can look at what it leaves; 0: not told.
    pid: int = 0
    # Further workers of the same adapter, so that cases need not wait for one another.
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a case runs: an adapter host, in which each has its own bindings, or one worker with the binding it has for life."""

    setting: Setting
    shared: Binding | None


@dataclass(frozen=True, slots=True)
class Certification:
    """What came of it. `interrupted`: it was told to stop, and cases are missing."""

    descriptor: descriptor_pb2.Descriptor
    verdict: str
    cases: Sequence[CaseResult]
    # The evidence (reference: certification).
    document: dict[str, Any]
    interrupted: bool = False


class Certifier:
    """A certification under way: `async with Certifier(options) as it: await it.run(case)`. The pytest plugin runs its cases one by one."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.driver: Driver = Guarded(driver_named(options.driver))
        self._canaries = Canaries(given=(options.token,) if options.token else ())
        self._stack = AsyncExitStack()
        self._refusals: list[Refusal] = []
        self._replica: Target | None = None
        self._lanes: list[Lane] = []
        self._free: asyncio.Queue[Lane] = asyncio.Queue()
        # Cases that did not come to an end.
        self._endless = 0

    @property
    def setting(self) -> Setting:
        """What all cases share, and the first target."""
        if not self._lanes:
            raise RuntimeError("a certification is entered before it is used")
        return self._lanes[0].setting

    @property
    def at_once(self) -> int:
        """How many cases may run side by side."""
        return AT_ONCE if self.options.placement == ADAPTER else len(self._lanes)

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
        descriptor, incarnation = await self._descriptor_of(target)
        targets = [target, *(self._target(address) for address in options.beside)]
        if worker:
            incarnations = [await _check_worker(each, descriptor) for each in targets]
            if len(set(incarnations)) < len(targets):
                raise TargetError("One worker was given twice.", "Give each --target a worker of its own.")
        elif options.replica:
            self._replica = self._target(options.replica)
            other, _ = await _ask_descriptor(self._replica, "--replica")
            if other.adapter_version != descriptor.adapter_version or other.harness_id != descriptor.harness_id:
                raise TargetError(
                    "The replica serves another adapter, or another version of it.", "Give a replica of the target."
                )
        settings, agent_options, model = self._steering()
        facades = await self._stack.enter_async_context(
            Facades(self._canaries, options.target, options.facades, model if worker else "")
        )
        first = Setting(
            target,
            facades,
            descriptor,
            Observations(),
            worker,
            placement_pb2.PLACEMENT_SANDBOX_POD if worker else _placement(descriptor),
            settings,
            agent_options,
            process=_process(options.pid),
        )
        skills = self._skills(descriptor) if worker else ()
        for each in targets:
            setting = replace(first, target=each, incarnation=incarnation)
            self._lanes.append(Lane(setting, Binding(setting, each, skills=skills) if worker else None))
            self._free.put_nowait(self._lanes[-1])

    def _steering(self) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Profile settings, options, and where the model of workers is."""
        driver = self.driver
        try:
            model = driver.model_address()
            if model and not _is_address(model):
                raise CannotExpressError(f"The scenario driver's model_address gave {model!r}, which is no address.")
            return driver.profile_settings(self._canaries.plant("profile-setting")), driver.options(), model
        except CannotExpressError as error:
            raise TargetError(str(error), "Mend the driver.") from None

    def _skills(self, descriptor: descriptor_pb2.Descriptor) -> tuple[str, ...]:
        """Skills of a worker's one agent: a worker is bound once, so it has all of them from then on."""
        try:
            return tuple(self.driver.skills()) if is_claimed(descriptor, "skills") else ()
        except CannotExpressError as error:
            raise TargetError(str(error), "Mend the driver.") from None

    def _target(self, address: str) -> Target:
        target = Target(_checked(address), self._canaries, self.options.token, self._refusals)
        self._stack.push_async_callback(target.close)
        return target

    async def _descriptor_of(self, target: Target) -> tuple[descriptor_pb2.Descriptor, str]:
        source = self.options.descriptor
        if self.options.placement == ADAPTER or not source:
            return await _ask_descriptor(target, "--target", worker=self.options.placement == WORKER)
        if source.startswith("unix:") or not await asyncio.to_thread(Path(source).exists):
            return await _ask_descriptor(self._target(source), "--descriptor")
        return await asyncio.to_thread(_read_descriptor, Path(source)), ""

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, case: Case) -> CaseResult:
        """Looks at one rule in one way: in any lane that is free, but what begins or ends a certification in the first."""
        reason = results.not_for(case, self.setting.descriptor, self.options.placement)
        if reason:
            return CaseResult(case, NOT_APPLICABLE, plain_text(reason))
        if self.options.placement == ADAPTER or case.when != MIDDLE:
            return await self._looked_at(case, self._lanes[0])
        lane = await self._free.get()
        try:
            return await self._looked_at(case, lane)
        finally:
            self._free.put_nowait(lane)

    async def _looked_at(self, case: Case, lane: Lane) -> CaseResult:
        if self._endless >= MAX_ENDLESS:
            return CaseResult(case, FAILED, f"Not looked at: {self._endless} cases before it did not come to an end.")
        workers = [each.shared for each in self._lanes if each.shared is not None]
        kit = Kit(lane.setting, self.driver, self._replica, lane.shared, workers)
        begun, shared = time.monotonic(), lane.shared
        before = 0 if shared is None else shared.rehearsed
        result, reason = await _judged(case, kit)
        self._endless += reason == _endless()
        rehearsed = sum(each.rehearsed for each in kit.made) + (0 if shared is None else shared.rehearsed - before)
        left = await _left_behind(kit)
        if left and result != FAILED:
            result, reason = FAILED, left
        seconds = round(time.monotonic() - begun, 3)
        return CaseResult(case, result, plain_text(reason)[:500], seconds, kit.figures, rehearsed > 0)


async def _judged(case: Case, kit: Kit) -> tuple[str, str]:
    try:
        async with asyncio.timeout(CASE_SECONDS):
            if kit.shared is not None and case.when != FIRST:
                await kit.shared.bound()
            await case.work(kit)
    except TimeoutError:
        return FAILED, _endless()
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


def _endless() -> str:
    return f"The case did not come to an end within {CASE_SECONDS:.0f} seconds."


async def _left_behind(kit: Kit) -> str:
    """Cleans up what the case made, whatever came of it; why that could not be done, or nothing."""
    try:
        async with asyncio.timeout(CASE_SECONDS):
            await kit.release()
    except TimeoutError:
        return f"The runtimes of the case were not cleaned up within {CASE_SECONDS:.0f} seconds."
    except Broken as broken:
        return str(broken)
    return ""


def chosen(sections: Sequence[int]) -> list[Case]:
    """Cases of these sections, in the order of their running."""
    return sorted((case for case in CASES if case.rule.section in sections), key=lambda case: case.when)


async def certify(options: Options, listener: Listener, stop: asyncio.Event | None = None) -> Certification:
    """Runs it all; `listener` hears of each case as it ends. Once `stop` is set nothing more is looked at, what runs is given up and cleaned up, and
    the certification is partial. Raises TargetError if it cannot begin."""
    started, begun = datetime.now(UTC), time.monotonic()
    made: list[CaseResult] = []

    def keep(result: CaseResult) -> None:
        made.append(result)
        listener(result)

    async with Certifier(options) as certifier:
        cases = chosen(options.sections)
        interrupted = not await _until(stop, _all(certifier, cases, keep))
        descriptor, replica = certifier.setting.descriptor, bool(options.replica)
    order = {case.id: place for place, case in enumerate(CASES)}
    made.sort(key=lambda result: order[result.case.id])
    if interrupted:
        sections = _looked_at(cases, made)
        options = replace(options, sections=tuple(each for each in options.sections if each in sections))
        made = [result for result in made if result.case.rule.section in sections]
    document = _document(options, descriptor, made, replica=replica)
    document["started_at"] = started.isoformat(timespec="seconds").replace("+00:00", "Z")
    document["seconds"] = round(time.monotonic() - begun, 3)
    return Certification(descriptor, document["verdict"], made, document, interrupted)


def _looked_at(cases: Sequence[Case], made: Sequence[CaseResult]) -> set[int]:
    """Sections of which every case was looked at, or one failed."""
    ended = {result.case.id for result in made}
    missing = {case.rule.section for case in cases if case.id not in ended}
    failed = {result.case.rule.section for result in made if result.result == FAILED}
    return ({case.rule.section for case in cases} - missing) | failed


async def _until(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work came to its end before it was told to stop."""
    if stop is None:
        await work
        return True
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        ended = working.done()
        if not ended:
            working.cancel()
            await asyncio.wait({working})
    if not working.cancelled():
        working.result()
    return ended


async def _all(certifier: Certifier, cases: Sequence[Case], keep: Listener) -> None:
    for case in [case for case in cases if case.when == FIRST]:
        keep(await certifier.run(case))
    await _side_by_side(certifier, [case for case in cases if case.when == MIDDLE], keep)
    for case in [case for case in cases if case.when > MIDDLE]:
        keep(await certifier.run(case))


async def _side_by_side(certifier: Certifier, cases: Sequence[Case], keep: Listener) -> None:
    # A worker has one binding, and turns of it come one after the other.
    room = asyncio.Semaphore(certifier.at_once)

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
            "harness_id": plain_text(descriptor.harness_id),
            "adapter_version": plain_text(descriptor.adapter_version),
            "sdk_name": plain_text(descriptor.sdk_name),
            "sdk_version": plain_text(descriptor.sdk_version),
            "contract_version": evidence.CONTRACT_VERSION,
            "descriptor_digest": evidence.descriptor_digest(descriptor),
        },
        "placement": options.placement,
        "replica": replica,
        "kit": {"version": evidence.kit_version(), "cases_digest": evidence.cases_digest(file_of(options.driver))},
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
                "rehearsed": each.rehearsed,
                "seconds": each.seconds,
                "figures": each.figures,
            }
            for each in made
        ],
    }
    return {"evidence_id": evidence.evidence_id(document), **document}


# --- whom it has before it ---


def _process(pid: int) -> TargetProcess | None:
    if not pid:
        return None
    if not SEES:
        raise TargetError("--pid: only on Linux can the kit look at a process.", "Leave it out.")
    process = TargetProcess(pid)
    try:
        process.descriptors()
    except OSError as error:
        hint = "Give the id of the process that serves the target, on this machine and of the same user."
        raise TargetError(f"--pid: process {pid} cannot be looked at: {error.strerror}.", hint) from None
    return process


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return (text.startswith("unix:") and len(text) > len("unix:")) or (bool(host) and port.isdigit())


def _checked(address: str) -> str:
    if not _is_address(address):
        raise TargetError(f"{address!r} is no address.", "Give unix:/path or host:port.")
    return address


def _placement(descriptor: descriptor_pb2.Descriptor) -> "placement_pb2.Placement.ValueType":
    hosted = [each for each in descriptor.placements if each != placement_pb2.PLACEMENT_SANDBOX_POD]
    return hosted[0] if hosted else placement_pb2.PLACEMENT_PROVIDER_MANAGED


async def _ask_descriptor(
    target: Target, option: str, *, worker: bool = False
) -> tuple[descriptor_pb2.Descriptor, str]:
    """The descriptor, and the incarnation of who answered."""
    request = adapter_service_pb2.GetDescriptorRequest()
    try:
        response: Any = await target.adapter.GetDescriptor(request, timeout=PROBE_SECONDS, metadata=target.metadata)
    except grpc.aio.AioRpcError as error:
        raise _not_a_target(error, target, option, worker=worker) from None
    if isinstance(response, Garbled):
        raise TargetError(f"GetDescriptor at {target.address} answered with no message of its type.", _OTHER_CONTRACT)
    return response.descriptor, response.incarnation


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


async def _check_worker(target: Target, descriptor: descriptor_pb2.Descriptor) -> str:
    """Its incarnation."""
    request = worker_service_pb2.GetReadinessRequest()
    try:
        response: Any = await target.worker.GetReadiness(request, timeout=PROBE_SECONDS, metadata=target.metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            hint = "An adapter host is certified with --placement adapter."
            raise TargetError(f"What serves {target.address} is no worker: it has no WorkerService.", hint) from None
        raise _not_a_target(error, target, "--target", worker=True) from None
    if isinstance(response, Garbled):
        raise TargetError(f"GetReadiness at {target.address} answered with no message of its type.", _OTHER_CONTRACT)
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
    return response.incarnation


def _read_descriptor(path: Path) -> descriptor_pb2.Descriptor:
    try:
        return json_format.Parse(path.read_bytes(), descriptor_pb2.Descriptor())
    except (OSError, UnicodeDecodeError, json_format.ParseError) as error:
        raise TargetError(
            f"--descriptor: {path} holds no descriptor: {error}", "Give a file of protobuf JSON."
        ) from None
