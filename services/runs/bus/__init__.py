"""What the replicas of the runs service tell each other: hints, never the truth (architecture, Stores, Live bus)."""

from __future__ import annotations

from services.common.logs import get_logger
from services.runs.bus.port import Bus, DispatchBus, Listener, LiveBus, NoBus, Notice, SignalListener
from services.runs.bus.redis_bus import RedisBus

__all__ = ["Bus", "DispatchBus", "Listener", "LiveBus", "NoBus", "Notice", "RedisBus", "SignalListener", "open_bus"]
_log = get_logger(__name__)


def open_bus(url: str | None, environment: str, holder: str, lease_ttl_seconds: float) -> Bus:
    """The bus of HARNESS_BUS_URL; none when it is empty. `start` and `close` it with the service. Errors: `ConfigurationError` (I32)."""
    if url is None:
        _log.info(
            "bus_not_configured", meaning="one process alone: other replicas learn of new events by polling the log"
        )
        return NoBus()
    return RedisBus(url, environment, holder, lease_ttl_seconds)
