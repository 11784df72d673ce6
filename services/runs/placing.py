"""Which runtime serves a run: the binding's if it is there, else one of the next generation (a turn end to end, Runtimes; I27)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.adapter.v1 import adapter_service_pb2
from harness.catalog.v1 import resolution_service_pb2
from harness.files.v1 import file_pb2
from harness.runtime.v1 import runtime_pb2
from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.runs import metrics
from services.runs.clients.sessions import Binding
from services.runs.engine import (
    FILES_AUDIENCE,
    MODEL_AUDIENCE,
    STATE_AUDIENCE,
    TOOL_AUDIENCE,
    Engine,
    binding_fence,
    fence_of,
)
from services.runs.lease import detach_grace_seconds
from services.runs.patience import RESTARTING, patiently
from services.runs.plan import Plan
from services.runs.run import Issued, Run
from services.runs.serving import check_again, check_agent, file_ref, granted

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a run is started, what it is executed with, and the binding as it is with that runtime."""

    issued: Issued
    plan: Plan
    binding: Binding


def expected_place(binding: Binding, plan: Plan) -> Issued | None:
    """Where the first executor of a run will most likely start it, as the catalog saw the adapter host; None when that cannot be said."""
    profile = plan.profile
    if plan.in_sandbox or not profile.adapter_address or not profile.adapter_incarnation:
        return None
    if binding.HasField("runtime_ref") and binding.runtime_ref.incarnation != profile.adapter_incarnation:
        return None
    return Issued(profile.adapter_address, profile.adapter_incarnation, binding.runtime_generation)


async def place(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Placed:
    """Make the binding's runtime, or find it. Raises `HarnessError`; `STALE_LEASE` when the run is not this executor's any more, `Unserved`
    when the harness lost what the agent needs while the run waited.
    """
    check_agent(plan)
    plan = await with_grants(engine, plan)
    if run.run_generation > 1:
        # The slot entitled the run's first executor alone to this generation; another one commits the next first (I27).
        binding = await _advance(engine, run, binding)
    if plan.in_sandbox:
        return await _in_sandbox(engine, run, binding, plan)
    return await _in_host(engine, run, binding, plan)


async def _in_host(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Placed:
    recorded = binding.runtime_ref.incarnation if binding.HasField("runtime_ref") else ""
    if recorded and recorded != plan.profile.adapter_incarnation:
        # Nothing is issued yet, so a host that is just being replaced is waited for.
        fresh = await patiently(
            engine.clock,
            engine.settings.reattach_seconds,
            lambda: engine.catalog.profile(run.harness_id, run.profile_id, fresh=True),
            RESTARTING,
        )
        plan = _judged_by(plan, fresh)
        if recorded != fresh.adapter_incarnation:
            binding = await _advance(engine, run, binding)
            recorded = ""
    issued = await _create(engine, run, binding, plan)
    if recorded and issued.incarnation != recorded:
        # The host was replaced and the catalog has not seen it yet; no run was ever started on what was just made.
        binding = await _advance(engine, run, binding)
        issued = await _create(engine, run, binding, plan)
    if issued.incarnation != plan.profile.adapter_incarnation:
        plan = await _known(engine, run, plan, issued)
    return Placed(issued, plan, await with_session(engine, run, binding, plan, issued))


async def _known(engine: Engine, run: Run, plan: Plan, issued: Issued) -> Plan:
    """The plan by what the catalog knows of the very host that has the runtime: a start is judged by no other version of its adapter, and goes to no
    other. The catalog hears of a host that was replaced a little later than who calls it, and is waited for.
    """

    async def look() -> resolution_service_pb2.ResolveProfileResponse:
        profile = await engine.catalog.profile(run.harness_id, run.profile_id, fresh=True)
        if profile.adapter_incarnation != issued.incarnation:
            raise HarnessError(
                Reason.HARNESS_UNAVAILABLE,
                "The agent's harness was just replaced, and the catalog does not know it yet: try again.",
            )
        return profile

    return _judged_by(plan, await patiently(engine.clock, engine.settings.runtime_start_seconds, look, RESTARTING))


def _judged_by(plan: Plan, profile: resolution_service_pb2.ResolveProfileResponse) -> Plan:
    """The plan with another answer of the catalog. Errors: `Unserved`."""
    plan = replace(plan, profile=profile)
    check_again(plan)
    return plan


async def with_grants(engine: Engine, plan: Plan) -> Plan:
    """The plan with what its agent may call. Errors: `Unstartable`, where that changed since the run was started."""
    if not plan.has_tools or plan.grants:
        return plan
    version = plan.version
    grants = await patiently(
        engine.clock,
        engine.settings.reattach_seconds,
        lambda: engine.catalog.grants(version.agent_id, version.version),
    )
    return granted(plan, grants, has_broker=engine.settings.tool_facade_addresses is not None)


async def files_of(engine: Engine, owner: str, file_ids: Sequence[str]) -> dict[str, file_pb2.File]:
    """What is known of a turn's files, by id. They are kept for its run, and for as long as somebody may answer what it asks."""
    keep_until = engine.clock.wall() + engine.settings.file_keep_seconds
    return await engine.sessions.files(owner, list(dict.fromkeys(file_ids)), keep_until)


async def with_files(engine: Engine, run: Run, plan: Plan, file_ids: Sequence[str]) -> Plan:
    """The plan with the turn's files, where another process, or an earlier time, looked them up."""
    if plan.files or not file_ids:
        return plan
    known = await patiently(
        engine.clock, engine.settings.reattach_seconds, lambda: files_of(engine, run.owner or "", file_ids)
    )
    return replace(plan, files=tuple(file_ref(file_id, known) for file_id in file_ids))


async def with_session(engine: Engine, run: Run, binding: Binding, plan: Plan, issued: Issued) -> Binding:
    """The binding with its native session's id, where the adapter derives that and none is recorded: it is opened, and recorded under the
    fence, before the first StartRun leaves. A sandbox worker opens it itself.
    """
    if plan.in_sandbox or not plan.names_sessions or binding.native_session_id:
        return binding
    fence = fence_of(run, issued.runtime_generation)
    request = adapter_service_pb2.OpenSessionRequest(fence=fence, context=_context(engine, plan, ""))
    native_session_id = await patiently(
        engine.clock,
        engine.settings.reattach_seconds,
        lambda: engine.runtimes.open_session(plan.host(issued.address), request, engine.settings.runtime_start_seconds),
    )
    if not native_session_id:
        return binding
    revision = await patiently(
        engine.clock,
        engine.settings.commit_seconds,
        lambda: engine.sessions.record_native_session(fence, native_session_id),
    )
    named = binding_pb2.Binding()
    named.CopyFrom(binding)
    named.native_session_id, named.session_revision = native_session_id, revision
    return named


async def _advance(engine: Engine, run: Run, binding: Binding) -> Binding:
    """The next runtime generation (I27). Repeated after a lost answer it is the same one."""
    return await patiently(
        engine.clock,
        engine.settings.commit_seconds,
        lambda: engine.sessions.advance_runtime(fence_of(run, binding.runtime_generation)),
    )


async def _create(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Issued:
    address = plan.profile.adapter_address
    if not address:
        raise HarnessError(Reason.HARNESS_UNAVAILABLE, "The agent's harness is not running.")
    wanted = Issued(address, "", binding.runtime_generation)
    return replace(wanted, incarnation=await make_in_host(engine, run, binding, plan, wanted))


async def make_in_host(engine: Engine, run: Run, binding: Binding, plan: Plan, issued: Issued) -> str:
    """Make the runtime of the generation at the address, or find it; the incarnation that has it. Whose it has to be, the caller says."""
    context = _context(engine, plan, binding.native_session_id)
    host, fence = plan.host(issued.address), fence_of(run, issued.runtime_generation)
    # Idempotent, so a host that is just being replaced is waited for.
    return await patiently(
        engine.clock,
        engine.settings.reattach_seconds,
        lambda: engine.runtimes.create(host, fence, context, engine.settings.runtime_start_seconds),
    )


def _context(engine: Engine, plan: Plan, native_session_id: str) -> runtime_pb2.RuntimeContext:
    """What holds for the life of the runtime: the plan's, and how long it goes on with a run whose executor was lost (I9)."""
    settings = engine.settings
    facades = {STATE_AUDIENCE: settings.state_facade_address}
    if plan.grants and settings.tool_facade_addresses is not None:
        facades[TOOL_AUDIENCE] = settings.tool_facade_addresses
    if plan.takes_files:
        # Served beside the thread state, at the same address.
        facades[FILES_AUDIENCE] = settings.state_facade_address
    if plan.model_endpoint:
        if settings.model_facade_address is None:
            raise HarnessError(
                Reason.CONFIGURATION_INVALID,
                "The profile reaches its model through the model egress, and there is none: set HARNESS_MODEL_FACADE_ADDRESS.",
            )
        facades[MODEL_AUDIENCE] = settings.model_facade_address
    context = plan.runtime_context(native_session_id, facades)
    context.limits.detach_grace_seconds = detach_grace_seconds(
        settings.lease_ttl_seconds, settings.sweep_interval_seconds
    )
    return context


async def _in_sandbox(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Placed:
    if binding.HasField("runtime_ref"):
        try:
            return Placed(_issued(await _acquire(engine, run, binding, plan, reuse_only=True)), plan, binding)
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        binding = await _advance(engine, run, binding)
    return Placed(_issued(await _acquire(engine, run, binding, plan, reuse_only=False)), plan, binding)


async def _acquire(engine: Engine, run: Run, binding: Binding, plan: Plan, *, reuse_only: bool) -> lease_pb2.Lease:
    request = sandbox_service_pb2.AcquireSandboxRequest(
        fence=fence_of(run, binding.runtime_generation),
        harness_id=run.harness_id,
        profile_id=run.profile_id,
        context=_context(engine, plan, binding.native_session_id),
        reuse_only=reuse_only,
    )
    return await engine.runtimes.acquire_sandbox(request, engine.settings.runtime_start_seconds)


def _issued(lease: lease_pb2.Lease) -> Issued:
    return Issued(lease.runtime_ref.address, lease.runtime_ref.incarnation, lease.runtime_generation)


async def release_runtime(engine: Engine, binding: Binding, plan: Plan) -> None:
    """Release whatever serves a binding that is being cleared. Idempotent. A runtime that did not end in full is no reason to keep the
    conversation: nothing it does is accepted any more, and its host tries again. It is told, and counted, as not clean (I20).
    """
    fence = binding_fence(binding.binding_id, binding.epoch, max(binding.runtime_generation, 1))
    if plan.in_sandbox:
        await engine.runtimes.release_sandbox(fence, engine.settings.runtime_start_seconds)
    elif address := binding.runtime_ref.address or plan.profile.adapter_address:
        # Also where none is recorded: a run that was ended before its runtime was may have made one.
        left = await engine.runtimes.clean_up(plan.host(address), fence, engine.settings.runtime_start_seconds)
        (metrics.CLEANED_IN_FULL if not left else metrics.CLEANED_IN_PART).inc()
        if left:
            _log.warning(
                "runtime_not_clean",
                binding_id=binding.binding_id,
                epoch=binding.epoch,
                runtime_generation=fence.runtime_generation,
                harness_id=binding.pin.harness_id,
                left=left,
            )
