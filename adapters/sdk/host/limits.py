"""Bounds of a host (I35)."""

from dataclasses import dataclass, field

from adapters.sdk.lifecycle import DEFAULT_LIMITS, EventLimits
from harness.runtime.v1 import runtime_pb2

DEFAULT_MAX_UNACKED_EVENTS = 16_384
DEFAULT_MAX_UNACKED_BYTES = 16 * 1024 * 1024
DEFAULT_MAX_BUFFERED_BYTES = 256 * 1024 * 1024
DEFAULT_DETACH_GRACE_SECONDS = 60.0
# A runtime may ask for more than the default, not for everything.
MAX_UNACKED_EVENTS = 65_536
MAX_UNACKED_BYTES = 64 * 1024 * 1024
MAX_DETACH_GRACE_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What a host holds and how long. Times in seconds."""

    # Runs worked on at once; more are refused with CAPACITY.
    max_runs: int = 1_000
    # Runtimes kept at once; the longest idle one makes room.
    max_runtimes: int = 5_000
    # A runtime without a run for this long is dropped; the control plane creates it again when it needs it.
    runtime_idle_seconds: float = 600.0
    # Cancelled runs remembered although unknown, and bindings whose highest generation is remembered.
    remembered: int = 10_000
    # How long a provider may take to stop after a cancel that says nothing about it.
    cancel_grace_seconds: float = 5.0
    # How long a stream that ignored its cancellation is waited for before it is given up.
    stop_seconds: float = 2.0
    # Bound of a restart, of making and preparing a runtime, and of every question to an adapter, whatever deadline the call has.
    restart_seconds: float = 30.0
    # Bound of a cleanup whose call has no deadline.
    cleanup_seconds: float = 10.0
    # Bound of a health check whose call has no deadline.
    health_seconds: float = 5.0
    # Ended runs kept per runtime, so that repeated calls of them are answered rather than started again.
    remembered_runs: int = 8
    # How long at least the drafts of an ended run are kept that its reader has left, however short the grace in which a run goes on without one.
    kept_seconds: float = 60.0
    # Encoded bytes of drafts that are not yet durable, over all runs.
    max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES
    events: EventLimits = field(default=DEFAULT_LIMITS)


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Flow bounds of one runtime."""

    max_events: int
    max_bytes: int
    detach_grace: float

    @classmethod
    def of(cls, limits: runtime_pb2.RuntimeLimits) -> "FlowLimits":
        """The contract's values, zero meaning the default, none above this host's own."""
        return cls(
            min(limits.max_unacked_events or DEFAULT_MAX_UNACKED_EVENTS, MAX_UNACKED_EVENTS),
            min(limits.max_unacked_bytes or DEFAULT_MAX_UNACKED_BYTES, MAX_UNACKED_BYTES),
            min(limits.detach_grace_seconds or DEFAULT_DETACH_GRACE_SECONDS, MAX_DETACH_GRACE_SECONDS),
        )
