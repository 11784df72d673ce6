"""Scripts: what a turn does, step by step, and where they stand in a request.

A script is JSON in the text of the newest user message, `{"script": [step, …]}`, or is queued by a test. A step is an object with one of these keys:

| step | what happens |
|---|---|
| `{"text": …}` or `{"chunks": […]}` | a text block, in one delta or in these |
| `{"reasoning": …}` | a reasoning block, before the text of the same message |
| `{"tools": [{"id", "name", "arguments"}], "pieces": n}` | inline functions: the stream ends for `tool_use`; the rest comes with the results |
| `{"own_tool": {"id", "name", "arguments", "result"}}` | a call that the provider makes itself, with its result (`"failed": true`: an error) |
| `{"usage": {"inputTokens": …, "outputTokens": …}}` | a `metadata` event |
| `{"results": true}` | the model tells the results of the last calls, as JSON |
| `{"told": true}` | the model tells what this request overrides, as JSON |
| `{"stop": reason}` | the message stops for this reason |
| `{"event": kind, "data": …}` | any event, legal or not |
| `{"refuse": kind, "message", "retry_after"}` | an error instead of a stream; first step only |
| `{"exception": kind, "message"}` | an exception in the stream |
| `{"end": "clean" \\| "half" \\| "cut"}` | the stream ends without more, in the middle of a frame, or by a reset |
| `{"hang": "stream" \\| "headers"}` | nothing more comes until the session is stopped |
| `{"pause": seconds}` | the next step comes later |
| `{"burst": count, "size": n}` | a text block of `count` deltas of `n` characters |
| `{"body": …, "type": …, "status": …}` | a runtime's whole answer: a string as it is, anything else as JSON |
| `{"line": …}` | a runtime's line: a string as it is, anything else as `data: <json>` |
"""

import json
from typing import Any

Step = dict[str, Any]
MAX_STEPS = 10_000


def steps_in(text: str) -> list[Step] | None:
    """The script that a text is; None: it is plain text. Errors: ValueError for a script that is none."""
    if not text.lstrip().startswith('{"script"'):
        return None
    found = json.loads(text)["script"]
    if not isinstance(found, list) or len(found) > MAX_STEPS or not all(isinstance(step, dict) for step in found):
        raise ValueError(f"a script is a list of at most {MAX_STEPS} objects")
    return found


def newest_user_text(messages: list[dict[str, Any]]) -> list[str]:
    """The text blocks of the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return [block["text"] for block in message.get("content", []) if "text" in block]
    return []


def tool_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool results of the last message."""
    content = messages[-1].get("content", []) if messages else []
    return [block["toolResult"] for block in content if "toolResult" in block]


def texts_of(payload: Any) -> list[str]:
    """Every text in a runtime's opaque payload, the outermost first."""
    if isinstance(payload, str):
        return [payload]
    inside = payload.values() if isinstance(payload, dict) else payload if isinstance(payload, list) else ()
    return [text for each in inside for text in texts_of(each)]
