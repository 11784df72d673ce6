"""What stands behind a profile: for services that run or host an agent, never for clients (ResolutionService)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.catalog.v1 import resolution_service_pb2 as pb
from harness.common.v1.placement_pb2 import PLACEMENT_SANDBOX_POD
from services.catalog.canonical import struct_of
from services.catalog.descriptor_policy import KnownDescriptor
from services.catalog.operator_file import ProfileEntry, Sandbox
from services.catalog.snapshot import PLACEMENTS, HarnessState, claims_of
from services.common.errors import HarnessError, Reason

_ISOLATION = {"strict": pb.ISOLATION_STRICT, "none": pb.ISOLATION_NONE}
RETRY_SECONDS = 1.0


class _Asked(NamedTuple):
    state: HarnessState
    profile: ProfileEntry


def resolve(
    state: HarnessState | None, profile_id: str, shown: Mapping[str, Collection[str]] | None = None
) -> pb.ResolveProfileResponse:
    """What a profile means now. `shown`: by profile, the capability keys that count where the operator requires evidence (I21).

    Errors: `harness_unknown`, `harness_disabled`, `harness_contract_incompatible`, `harness_unavailable`.
    """
    asked = _asked(state, profile_id)
    state, profile = asked
    known = state.known
    if known is None or not state.available:
        raise HarnessError(
            Reason.HARNESS_UNAVAILABLE,
            f"The harness cannot be used now: {state.reason} It is looked at again by itself.",
            retry_after=RETRY_SECONDS,
        )
    placement = PLACEMENTS[profile.placement]
    if placement not in known.descriptor.placements:
        raise HarnessError(
            Reason.HARNESS_CONTRACT_INCOMPATIBLE,
            f"The harness does not support the profile's placement {profile.placement}: the operator has to change one.",
        )
    hosted = placement != PLACEMENT_SANDBOX_POD
    token = state.adapter.token
    return pb.ResolveProfileResponse(
        descriptor=_counting(known, profile_id, shown),
        adapter_address=state.adapter.address if hosted else "",
        adapter_incarnation=state.incarnation if hosted else "",
        placement=placement,
        profile_settings=struct_of(profile.settings),
        sandbox=_sandbox(profile.sandbox) if profile.sandbox is not None else None,
        contract_version=known.contract_version,
        max_run_seconds=profile.limits.max_run_seconds or 0,
        max_concurrent_runs=profile.limits.max_concurrent_runs or 0,
        model_endpoint=profile.model_endpoint or "",
        # I28: the host's own credential; a profile that runs in sandboxes has no use for it.
        adapter_token=token.get_secret_value() if hosted and token is not None else "",
    )


def _counting(known: KnownDescriptor, profile_id: str, shown: Mapping[str, Collection[str]] | None) -> Descriptor:
    if shown is None:
        return known.descriptor
    counting = Descriptor()
    counting.CopyFrom(known.descriptor)
    for key, claim in claims_of(known, profile_id, shown).items():
        counting.capabilities[key].CopyFrom(claim)
    return counting


def _asked(state: HarnessState | None, profile_id: str) -> _Asked:
    if state is None:
        raise HarnessError(Reason.HARNESS_UNKNOWN, "The operator's file has no such harness.")
    if not state.adapter.enabled:
        raise HarnessError(Reason.HARNESS_DISABLED, "The operator disabled this harness.")
    profile = state.adapter.profiles.get(profile_id)
    if profile is None:
        known = ", ".join(sorted(state.adapter.profiles))
        raise HarnessError(
            Reason.HARNESS_UNKNOWN,
            f"Harness {state.adapter.harness_id} has no profile {profile_id} in the operator's file; it has: {known}.",
        )
    if state.blocked:
        raise HarnessError(Reason.HARNESS_CONTRACT_INCOMPATIBLE, f"The harness is blocked: {state.blocked}")
    return _Asked(state, profile)


def _sandbox(sandbox: Sandbox) -> pb.SandboxProfile:
    return pb.SandboxProfile(
        worker_module=sandbox.worker_module,
        isolation=_ISOLATION[sandbox.isolation],
        idle_seconds=sandbox.idle_seconds,
        lifetime_seconds=sandbox.lifetime_seconds,
        memory_mib=sandbox.memory_mib,
        max_pids=sandbox.max_pids,
        workspace_mib=sandbox.workspace_mib,
        cpu_millis=sandbox.cpu_millis,
    )
