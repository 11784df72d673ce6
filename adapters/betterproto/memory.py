"""What a conversation leaves behind: how many turns it had, what was said last, and what it waits for."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from betterproto_contracts.harness.common.v1 import ErrorCategory

from adapters.betterproto.errors import Failure
from adapters.betterproto.facades import ThreadState
from adapters.betterproto.message import Script

CODEC = "reference_betterproto.v1"
MAX_SAID_CHARACTERS = 200


@dataclass(frozen=True)
class Pause:
    """A turn that waits for a person: which interrupt, what may be decided, and how the turn goes on."""

    run_id: str
    interrupt_id: str
    # By call, the decisions that are allowed; empty for a form.
    allowed: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    # Calls of portable tools that the broker holds back, to be made when they are approved: id, tool, arguments.
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    # Steps of the interrupted script that are still to be played, then the scripts of the message.
    rest: Script = field(default_factory=Script)
    scripts: list[Script] = field(default_factory=list[Script])
    per_turn: bool = False


@dataclass(frozen=True)
class Memory:
    """A conversation as the committed head has it."""

    turns: int = 0
    said: str = ""
    pause: Pause | None = None


async def recall(state: ThreadState) -> Memory:
    """The committed memory; empty without one. Raises Failure of category persistence."""
    revision, codec, data = await state.load()
    if not revision or not codec:
        # Without a codec only turns that leave no state came before.
        return Memory()
    if codec != CODEC:
        raise _damaged("state_codec", "The conversation's state has another encoding.")
    try:
        document = json.loads(data)
        pause = document["pause"]
        return Memory(document["turns"], document["said"], Pause(**pause) if pause else None)
    except (KeyError, TypeError, ValueError):
        raise _damaged("state_damaged", "The conversation's state is damaged.") from None


async def remember(state: ThreadState, memory: Memory) -> None:
    """Writes the memory this turn leaves behind: one part, which does not grow with the conversation."""
    await state.write(json.dumps(asdict(memory)).encode(), CODEC, "memory")


def _damaged(code: str, message: str) -> Failure:
    return Failure(ErrorCategory.PERSISTENCE, code, message)
