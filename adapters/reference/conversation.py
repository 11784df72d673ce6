"""Plain conversation: shows that it knows the earlier turns, out of committed thread state alone."""

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from adapters.reference.pause import Pause
from adapters.sdk.contract import Turn
from adapters.sdk.errors import PersistenceError
from adapters.sdk.events import completed, session_updated, text, usage
from harness.event.v1 import event_pb2

CODEC = "reference.v1"
MAX_REMEMBERED_CHARACTERS = 200
_WORDS = re.compile(r"\s*\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept of a conversation: how many turns it had, what was said last, and what it waits for."""

    turns: int = 0
    said: str = ""
    pause: Pause | None = None


async def recall(turn: Turn, *, durable: bool) -> Memory:
    """The committed state; empty without one. Raises PersistenceError if it cannot be loaded or is not ours."""
    if not durable or turn.thread_revision == 0:
        return Memory()
    head = await turn.thread.load_head()
    if head is None:
        raise PersistenceError("The conversation's state is missing.", code="state_missing")
    if not head.parts:
        # Only turns that leave no state (bursts, scripts) came before.
        return Memory()
    if head.codec != CODEC:
        raise PersistenceError("The conversation's state has another encoding.", code="state_codec")
    try:
        document = orjson.loads(head.parts[0])
        pause = document.get("pause")
        return Memory(
            int(document["turns"]), str(document["said"]), None if pause is None else Pause.from_document(pause)
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise PersistenceError("The conversation's state is damaged.", code="state_damaged") from None


async def remember(turn: Turn, memory: Memory, *, durable: bool) -> None:
    """Writes the state this turn leaves behind. One part that replaces the last: it does not grow with the conversation."""
    if durable:
        document: dict[str, Any] = {"turns": memory.turns, "said": memory.said}
        if memory.pause is not None:
            document["pause"] = memory.pause.to_document()
        data = orjson.dumps(document)
        await turn.thread.write_part(data, CODEC, key="memory", replace=True)


async def stream(turn: Turn, message: str, greeting: str, *, durable: bool) -> AsyncIterator[event_pb2.EventDraft]:
    """One plain turn: session, answer word by word, usage, end."""
    memory = await recall(turn, durable=durable)
    if not turn.native_session_id:
        yield session_updated(_session_id(turn))
    answer = _answer(memory, message, greeting)
    for word in words(answer):
        yield text(word)
    said = message[:MAX_REMEMBERED_CHARACTERS]
    await remember(turn, Memory(memory.turns + 1, said), durable=durable)
    yield usage(input_tokens=len(words(message)), output_tokens=len(words(answer)), final=True)
    yield completed()


def words(body: str) -> list[str]:
    """`body` cut before each word but the first; joined it is `body` again."""
    return _WORDS.findall(body)


def _answer(memory: Memory, message: str, greeting: str) -> str:
    number = memory.turns + 1
    parts = [greeting] if greeting else []
    if memory.turns:
        parts.append(f"This is turn {number} of this conversation; before that you said: {memory.said}")
    else:
        parts.append(f"This is turn {number} of this conversation; nothing was said before.")
    parts.append(f"Now you say: {message[:MAX_REMEMBERED_CHARACTERS]}")
    return "\n".join(parts)


def _session_id(turn: Turn) -> str:
    # As a provider would: the first turn decides the name, and nothing can be read from it.
    digest = hashlib.blake2b(turn.run_id.encode(), digest_size=16, person=b"reference").hexdigest()
    return f"ref-{digest}"
