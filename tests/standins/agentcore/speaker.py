"""What a managed harness says, as frames: messages of blocks, in the order of the real service."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tests.standins.agentcore.frames import event
from tests.standins.agentcore.script import Step

USAGE = {"inputTokens": 10, "outputTokens": 5}


class Speaker:
    """Puts steps into messages: reasoning, one text, then calls; a text after a text or a call begins the next message."""

    def __init__(self) -> None:
        self._open = self._has_text = False
        self._index = 0

    def reasoning(self, text: str) -> Iterator[bytes]:
        """A reasoning block and its signature."""
        if self._has_text:
            yield from self.stop("partial_turn")
        yield from self._start()
        yield self._delta({"reasoningContent": {"text": text}})
        yield self._delta({"reasoningContent": {"signature": "c2lnbmVk"}})
        yield self._stop_block()

    def text(self, pieces: list[str]) -> Iterator[bytes]:
        """A text block; the service has no empty deltas."""
        if self._has_text:
            yield from self.stop("partial_turn")
        yield from self._start()
        self._has_text = True
        for piece in pieces:
            if piece:
                yield self._delta({"text": piece})
        yield self._stop_block()

    def calls(self, calls: list[dict[str, Any]], pieces: int, kind: str = "tool_use") -> Iterator[bytes]:
        """Calls of one message, which stops for them."""
        yield from self._start()
        for call in calls:
            start = {"toolUse": {"toolUseId": call["id"], "name": call["name"], "type": kind}}
            yield event("contentBlockStart", {"contentBlockIndex": self._index, "start": start})
            for part in _split(json.dumps(call.get("arguments", {})), pieces):
                yield self._delta({"toolUse": {"input": part}})
            yield self._stop_block()
        yield from self.stop("tool_use")

    def own_call(self, call: dict[str, Any]) -> Iterator[bytes]:
        """A call of the provider's own, and the message of its result."""
        yield from self.calls([call], 1, call.get("type", "server_tool_use"))
        status = "error" if call.get("failed") else "success"
        yield event("messageStart", {"role": "user"})
        start = {"toolResult": {"toolUseId": call["id"], "status": status}}
        yield event("contentBlockStart", {"contentBlockIndex": 0, "start": start})
        result = call.get("result")
        block = {"text": result} if isinstance(result, str) else {"json": result}
        yield event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolResult": [block]}})
        yield event("contentBlockStop", {"contentBlockIndex": 0})
        yield event("messageStop", {"stopReason": "tool_result"})

    def stop(self, reason: str) -> Iterator[bytes]:
        """Ends the message that is open, if one is."""
        if self._open:
            yield event("messageStop", {"stopReason": reason})
        self._open = self._has_text = False

    def finish(self, reason: str = "end_turn") -> Iterator[bytes]:
        """The end of a turn: a message is always stopped, if need be an empty one."""
        yield from self._start()
        yield from self.stop(reason)

    def usage(self, counts: Step) -> bytes:
        """What a turn cost so far."""
        said = {**USAGE, **counts}
        said.setdefault("totalTokens", said["inputTokens"] + said["outputTokens"])
        return event("metadata", {"usage": said, "metrics": {"latencyMs": 7}})

    def hook(self, kind: str) -> bytes:
        """A notice of a hook."""
        return event("hookEvent", {"hookEventId": str(UUID(int=7)), "name": "audit", "type": kind})

    def _start(self) -> Iterator[bytes]:
        if not self._open:
            self._open, self._index = True, 0
            yield event("messageStart", {"role": "assistant"})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("contentBlockDelta", {"contentBlockIndex": self._index, "delta": delta})

    def _stop_block(self) -> bytes:
        stopped = event("contentBlockStop", {"contentBlockIndex": self._index})
        self._index += 1
        return stopped


def _split(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)]
