"""A turn's message and files as the content the model reads, within the harness's limits."""

from collections.abc import Sequence
from typing import Any

from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.events import Draft


async def content_of_turn(turn: Turn) -> tuple[str | Sequence[dict[str, Any]], list[Draft]]:
    """The content, and warnings of what was left out of it."""
    warnings = [events.warning("file_left_out", "A file was left out.") for _ in turn.files]
    return turn.message, warnings
