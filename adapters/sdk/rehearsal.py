"""Rehearsals: what a certification asks for and no provider can be made to say, played by the adapter itself (certification, Rehearsals).

A message that is a JSON object with the one key `rehearse` and a list of steps is one, and only under a profile whose setting `allow_faults` is true:

| step | plays |
|---|---|
| `{"text": said}`, with `"chunks": [pieces]` if wanted | one message of text, in these pieces |
| `{"reasoning": said}` | reasoning |
| `{"usage": {"input_tokens", "output_tokens", "final"}}` | counts |
| `{"burst": {"count", "size"}}` | one message of `count` pieces of `size` characters |
| `{"fail": {"category", "message"}}`, with `code`, `retryable`, `retry_after` if wanted | a failure that is classified |
| `{"raise": text}` | an exception that nobody classified |
| `{"emit": {"type", "data"}}` | the event as it is, legal or not |
| `{"hang": true}` | nothing any more, until the run is stopped |

An adapter lets a rehearsal take the place of its provider's answer, so that everything behind that (its translation, the classification of its
errors, the end of its turn) is its own: it is the adapter that is looked at, not this module.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import orjson
from google.protobuf import json_format

from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ERRORS_BY_CATEGORY, ConfigurationError
from adapters.sdk.events import Draft

ALLOW_FAULTS: Final = "allow_faults"
"""The setting of an operator's profile."""
MAX_BURST_CHARACTERS: Final = 16 * 1024 * 1024
_FAILURE_WORDS: Final = frozenset({"category", "message", "code", "retryable", "retry_after"})
T = TypeVar("T")


def rehearsal_of(turn: Turn) -> "Rehearsal | None":
    """The rehearsal that a turn's message is; None: it is an ordinary message, as every message is under a profile that does not allow faults.

    Raises ConfigurationError (`step_invalid`) for one that is no list of steps.
    """
    # The operator's word and nobody else's; nothing but true is one.
    if turn.construction.profile_settings.get(ALLOW_FAULTS) is not True:
        return None
    try:
        document: object = orjson.loads(turn.message) if turn.message.startswith("{") else None
    except orjson.JSONDecodeError:
        return None
    given: dict[str, Any] = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if "rehearse" not in given:
        return None
    steps: Any = given["rehearse"]
    if len(given) > 1 or not isinstance(steps, list):
        raise _unknown("A rehearsal is a list of steps under the one key `rehearse`.")
    return Rehearsal(cast("list[Any]", steps))


class Rehearsal:
    """Steps to be played once."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = steps

    async def drafts(self) -> AsyncGenerator[Draft, None]:
        """A whole turn, its terminal too: for an adapter that has nothing of its own between a provider and its events. Raises as `play`."""
        async for draft in self.play(_spoken):
            yield draft
        yield events.completed("end_turn")

    async def play(self, say: Callable[[Sequence[str], int], Iterable[T]]) -> AsyncGenerator[T | Draft, None]:
        """What the provider would have said, without an end. `say` makes one message out of pieces of text and the number of its step, in whatever form
        the provider's answers reach the adapter's own translation; all else is drafts already.

        Raises what it is asked to raise, and ConfigurationError (`step_invalid`) for a step that is none.
        """
        for number, step in enumerate(self._steps):
            match step:
                case {"text": str(text), **more}:
                    for said in say(_pieces(text, more.get("chunks")), number):
                        yield said
                case {"burst": {"count": int(count), "size": int(size)}} if 0 < count * size <= MAX_BURST_CHARACTERS:
                    for said in say(["x" * size] * count, number):
                        yield said
                case {"reasoning": str(text)}:
                    yield events.reasoning(text, message_id=f"r{number}")
                case {"hang": True}:
                    await asyncio.Event().wait()
                case {"raise": str(text)}:
                    raise RuntimeError(text)
                case {"fail": given}:
                    raise _failure(given)
                case {"usage": counts}:
                    yield _usage(counts)
                case {"emit": {"type": str(kind), "data": data}}:
                    yield _event(kind, data)
                case _:
                    raise _unknown("A step of the rehearsal is none.")


def _spoken(pieces: Sequence[str], number: int) -> Iterable[Draft]:
    return (events.text(piece, message_id=f"m{number}") for piece in pieces)


def _pieces(text: str, chunks: object) -> list[str]:
    return [str(piece) for piece in cast("list[Any]", chunks)] if isinstance(chunks, list) and chunks else [text]


def _failure(asked: object) -> Exception:
    given: dict[str, Any] = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
    kind = ERRORS_BY_CATEGORY.get(str(given.get("category")))
    if kind is None or not isinstance(given.get("message"), str) or given.keys() - _FAILURE_WORDS:
        return _unknown("A failure of the rehearsal lacks its category or message, or says what no failure says.")
    return kind(given["message"], **{name: given[name] for name in given.keys() - {"category", "message"}})


def _usage(counts: object) -> Draft:
    try:
        return events.usage(**cast("dict[str, Any]", counts))
    except (TypeError, ValueError):
        raise _unknown("The counts of the rehearsal are none.") from None


def _event(kind: str, data: object) -> Draft:
    try:
        return json_format.ParseDict({"payload": {kind.replace(".", "_"): data}}, Draft())
    except (json_format.ParseError, TypeError, ValueError):
        raise _unknown("An event of the rehearsal is none.") from None


def _unknown(why: str) -> ConfigurationError:
    return ConfigurationError(f"{why} See the certification page for what can be rehearsed.", code="step_invalid")
