"""A rehearsal in the place of an invocation: texts as the service streams them, failures by way of what classifies the service's own."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from adapters.agentcore.failures import failure_of
from adapters.sdk.events import Draft
from adapters.sdk.rehearsal import Rehearsal

T = TypeVar("T")


async def lots_of(
    rehearsal: Rehearsal, say: Callable[[Sequence[str], int], Iterable[T]]
) -> AsyncGenerator[list[T] | Draft, None]:
    """What `invoke` would give: lots of what the service says, and events of the rehearsal as they are. Raises HarnessError."""
    try:
        async for said in rehearsal.play(say):
            yield said if isinstance(said, Draft) else [said]
    except Exception as error:  # noqa: BLE001 - whatever is raised is classified, as in an invocation
        raise failure_of(error) from None
    # The end that the service would say by itself.
    yield list(say((), 0))


def message(pieces: Sequence[str], _: int) -> Iterable[Mapping[str, Any]]:
    """One message of a managed harness's stream."""
    yield {"messageStart": {"role": "assistant"}}
    for piece in pieces:
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}}
    yield {"contentBlockStop": {"contentBlockIndex": 0}}
    yield {"messageStop": {"stopReason": "end_turn"}}


def plain_text(pieces: Sequence[str], _: int) -> Iterable[str | bytes]:
    """The same of a custom runtime that answers plain text."""
    if pieces:
        yield "text/plain"
    for piece in pieces:
        yield piece.encode()
