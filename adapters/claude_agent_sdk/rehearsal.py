"""A rehearsal in the program's place: texts as the program streams them, and a result at the end, for the same reader and translation."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from claude_agent_sdk import ResultMessage, StreamEvent
from claude_agent_sdk.types import Message

from adapters.sdk.events import Draft
from adapters.sdk.rehearsal import Rehearsal

NAME = "rehearsal"


async def messages_of(rehearsal: Rehearsal) -> AsyncGenerator[Message | Draft, None]:
    """What the program would say to the turn's end, and events of the rehearsal as they are. Raises what the rehearsal is to raise."""
    async for said in rehearsal.play(_streamed):
        yield said
    yield ResultMessage(
        "success",
        duration_ms=0,
        duration_api_ms=0,
        is_error=False,
        num_turns=1,
        session_id=NAME,
        stop_reason="end_turn",
    )


def _streamed(pieces: Sequence[str], _: int) -> Iterator[Message]:
    events: list[dict[str, Any]] = [
        {"type": "message_start"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
        *(_delta(piece) for piece in pieces),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    for event in events:
        yield StreamEvent(NAME, NAME, event)


def _delta(piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
