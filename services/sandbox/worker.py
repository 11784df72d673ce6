"""What the service asks of others, as ports: a profile of the catalog, and the three questions to a worker."""

from dataclasses import dataclass
from typing import Protocol

from harness.common.v1 import fence_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import HarnessError, Reason
from services.common.sandbox_cause import SandboxCause, caused
from services.sandbox.profile import Profile

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a worker says of itself."""

    ready: bool
    reason: str
    protocol_versions: tuple[int, ...]
    harness_id: str
    bound: bool
    incarnation: str


class Profiles(Protocol):
    """The catalog, as far as sandboxes need it."""

    async def sandbox_profile(self, harness_id: str, profile_id: str) -> Profile: ...


class Workers(Protocol):
    """The workers, by address. Every call is bounded and raises `HarnessError`."""

    async def readiness(self, address: str) -> Readiness: ...

    async def bind(
        self, address: str, fence: fence_pb2.Fence, harness_id: str, context: runtime_pb2.RuntimeContext
    ) -> str:
        """Binds the worker for life; its incarnation."""
        ...

    async def shutdown(self, address: str, fence: fence_pb2.Fence, seconds: float) -> str:
        """Tells the worker to release everything and to end, within `seconds`; what it says is left, empty when nothing is."""
        ...


def check_fit(readiness: Readiness, harness_id: str, protocol_version: int) -> None:
    """Whether the worker is the one the profile promised. `HarnessError` WORKER_MISMATCH or SANDBOX_NOT_READY."""
    if readiness.harness_id != harness_id:
        raise HarnessError(
            Reason.WORKER_MISMATCH,
            f"The profile's worker hosts harness {readiness.harness_id}, not {harness_id}: correct the profile's worker_module.",
        )
    if protocol_version not in readiness.protocol_versions:
        spoken = ", ".join(str(version) for version in readiness.protocol_versions) or "none"
        raise HarnessError(
            Reason.WORKER_MISMATCH,
            f"The worker speaks worker protocol {spoken}, not {protocol_version}: use an adapter of a fitting version.",
        )
    if readiness.bound:
        # I26: a worker that is bound already belongs to somebody.
        raise HarnessError(Reason.WORKER_MISMATCH, "The new worker is bound already.")
    if not readiness.ready:
        raise caused(SandboxCause.NOT_READY, f"The worker is not ready: {readiness.reason}"[:500])
