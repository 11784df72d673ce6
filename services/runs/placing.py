"""Which runtime serves a run: the binding's if it is there, else one of the next generation (a turn end to end, Runtimes; I27)."""

from __future__ import annotations

from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2
from services.common.errors import HarnessError, Reason
from services.runs.clients.sessions import Binding
from services.runs.engine import Engine, binding_fence, fence_of
from services.runs.patience import patiently
from services.runs.plan import Plan
from services.runs.run import Issued, Run


def expected_place(binding: Binding, plan: Plan) -> Issued | None:
    """Where the first executor of a run will most likely start it, as the catalog saw the adapter host; None when that cannot be said."""
    profile = plan.profile
    if plan.in_sandbox or not profile.adapter_address or not profile.adapter_incarnation:
        return None
    if binding.HasField("runtime_ref") and binding.runtime_ref.incarnation != profile.adapter_incarnation:
        return None
    return Issued(profile.adapter_address, profile.adapter_incarnation, binding.runtime_generation)


async def place(engine: Engine, run: Run, binding: Binding, plan: Plan) -> tuple[Issued, Plan]:
    """Make the binding's runtime, or find it. Raises `HarnessError`; `STALE_LEASE` when the run is not this executor's any more."""
    if run.run_generation > 1:
        # The slot entitled the run's first executor alone to this generation; another one commits the next first (I27).
        binding = await engine.sessions.advance_runtime(fence_of(run, binding.runtime_generation))
    if plan.in_sandbox:
        return await _in_sandbox(engine, run, binding, plan), plan
    return await _in_host(engine, run, binding, plan)


async def _in_host(engine: Engine, run: Run, binding: Binding, plan: Plan) -> tuple[Issued, Plan]:
    recorded = binding.runtime_ref.incarnation if binding.HasField("runtime_ref") else ""
    if recorded and recorded != plan.profile.adapter_incarnation:
        fresh = await engine.catalog.profile(run.harness_id, run.profile_id, fresh=True)
        plan = Plan(plan.version, fresh)
        if recorded != fresh.adapter_incarnation:
            binding = await engine.sessions.advance_runtime(fence_of(run, binding.runtime_generation))
            recorded = ""
    issued = await _create(engine, run, binding, plan)
    if recorded and issued.incarnation != recorded:
        # The host was replaced and the catalog has not seen it yet; no run was ever started on what was just made.
        binding = await engine.sessions.advance_runtime(fence_of(run, binding.runtime_generation))
        issued = await _create(engine, run, binding, plan)
    return issued, plan


async def _create(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Issued:
    address = plan.profile.adapter_address
    if not address:
        raise HarnessError(Reason.HARNESS_UNAVAILABLE, "The agent's harness is not running.")
    context = plan.runtime_context(binding.native_session_id, engine.settings.state_facade_address)
    fence = fence_of(run, binding.runtime_generation)
    # Idempotent, so a host that is just being replaced is waited for.
    incarnation = await patiently(
        engine.clock,
        engine.settings.reattach_seconds,
        lambda: engine.runtimes.create(plan.host(address), fence, context, engine.settings.runtime_start_seconds),
    )
    return Issued(address, incarnation, binding.runtime_generation)


async def _in_sandbox(engine: Engine, run: Run, binding: Binding, plan: Plan) -> Issued:
    if binding.HasField("runtime_ref"):
        try:
            return _issued(await _acquire(engine, run, binding, plan, reuse_only=True))
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        binding = await engine.sessions.advance_runtime(fence_of(run, binding.runtime_generation))
    return _issued(await _acquire(engine, run, binding, plan, reuse_only=False))


async def _acquire(engine: Engine, run: Run, binding: Binding, plan: Plan, *, reuse_only: bool) -> lease_pb2.Lease:
    request = sandbox_service_pb2.AcquireSandboxRequest(
        fence=fence_of(run, binding.runtime_generation),
        harness_id=run.harness_id,
        profile_id=run.profile_id,
        context=plan.runtime_context(binding.native_session_id, engine.settings.state_facade_address),
        reuse_only=reuse_only,
    )
    return await engine.runtimes.acquire_sandbox(request, engine.settings.runtime_start_seconds)


def _issued(lease: lease_pb2.Lease) -> Issued:
    return Issued(lease.runtime_ref.address, lease.runtime_ref.incarnation, lease.runtime_generation)


async def release_runtime(engine: Engine, binding: Binding, plan: Plan) -> None:
    """Release whatever serves a binding that is being cleared. Idempotent."""
    fence = binding_fence(binding.binding_id, binding.epoch, max(binding.runtime_generation, 1))
    if plan.in_sandbox:
        await engine.runtimes.release_sandbox(fence, engine.settings.runtime_start_seconds)
    elif binding.HasField("runtime_ref"):
        host = plan.host(binding.runtime_ref.address)
        await engine.runtimes.clean_up(host, fence, engine.settings.runtime_start_seconds)
