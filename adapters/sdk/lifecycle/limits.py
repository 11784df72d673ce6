"""Bounds of a run's events (events, Bounds). Operators may lower them; nothing raises them past the contract."""

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Every bound the lifecycle enforces. Sizes are bytes of UTF-8 or of compact JSON, unless said otherwise."""

    # Text of one delta; longer ones are split between characters.
    delta_bytes: int = 64 * KIB
    # One event, as it stands on the wire.
    event_bytes: int = 256 * KIB
    # All fragments of one call's arguments, or arguments given at once.
    arguments_bytes: int = 128 * KIB
    # Arguments that arrive in fragments, of all open calls together: they are part of what a segment says is open.
    open_arguments_bytes: int = 512 * KIB
    # Result of one tool call as JSON.
    result_bytes: int = 256 * KIB
    # Objects within objects in arguments and metadata, the outermost counted.
    metadata_depth: int = 8
    # Keys in all objects of one piece of arguments or metadata together.
    metadata_keys: int = 256
    # Objects and lists within each other in a tool's result.
    result_depth: int = 32
    # Length of a namespace path.
    namespace_depth: int = 8
    # Namespaces open at once.
    open_namespaces: int = 64
    # Tool calls open at once.
    open_calls: int = 128
    # Ended tool calls whose ids are remembered, so that none of them is started again.
    remembered_calls: int = 512


DEFAULT_LIMITS = EventLimits()
