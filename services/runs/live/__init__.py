"""How everybody who reads a run gets its events: one follower per run and process, watchers that are cursors (run protocol, Read)."""

from services.runs.live.hub import LiveHub, serialized

__all__ = ["LiveHub", "serialized"]
