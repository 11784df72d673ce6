"""What the replicas of the runs service tell each other: hints, never the truth (architecture, Stores, Live bus)."""

from services.runs.bus.port import Bus, Listener, LiveBus, NoBus, Notice

__all__ = ["Bus", "Listener", "LiveBus", "NoBus", "Notice"]
