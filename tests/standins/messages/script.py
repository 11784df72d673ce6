"""What is answered: by a script in the newest message of a person, at the place that the conversation itself says. No state is kept.

A script is a list of answers, one a request. An answer is a list of steps, or a mapping for one that is none:

| step | does |
|---|---|
| `{"text": [pieces]}`, `{"thinking": said}` | a block, in these deltas |
| `{"tool_use": {"id", "name", "input"}}` | a call; `"pieces": [...]` gives the fragments of its JSON exactly |
| `{"usage": {...}}` | the counts of this answer |
| `{"burst": [count, size]}` | a text of `count` deltas of `size` characters |
| `{"results": true}` | a text: JSON of all results of calls in the newest message, by call |
| `{"files": true}` | a text: SHA-256 of each image and document in the message with the script, in order, one a line |
| `{"heard": true}` | a text: all that was said to the model since it spoke last, but for results of calls |
| `{"ping": true}`, `{"event": {...}}` | a ping; any event, also of an unknown type |
| `{"pause": seconds}` | nothing for so long |
| `{"raw": text}` | these bytes in the stream, as they are |
| `{"error": {"type", "message"}}` | an error event, and the end |
| `{"hang": true}`, `{"cut": true}` | nothing more; the socket is cut |
| `{"half": true}`, `{"unended": true}` | half a frame, then the end; the end without message_stop |

`{"status": 429, "retry_after": 3, "type": ..., "message": ...}` is an HTTP error, `{"hang": true}` no answer at all, `{"cut": true}` a socket cut before
the headers.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

MARK = "@messages-script "
Json = dict[str, Any]
Answer = list[Json] | Json
ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def marked(*answers: Answer) -> str:
    """The text that carries a script; whatever stands around it changes nothing."""
    return MARK + json.dumps(list(answers))


def answer_to(request: Mapping[str, Any]) -> Answer:
    """What the conversation's newest script says at this place; without one, an answer that repeats what was said before."""
    messages = cast("Sequence[Json]", request.get("messages") or [])
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.get("role") != "user":
            continue
        said = texts(message)
        script = next((found for text in reversed(said) if (found := _script(text)) is not None), None)
        if script is not None:
            played = sum(later.get("role") == "assistant" for later in messages[place + 1 :])
            return script[played] if played < len(script) else [{"text": ["ok"]}]
        if said and not _has_results(message):
            # Beside results of calls the program says a word of its own when it goes on.
            break
    return [{"text": [_conversation(messages)]}]


def texts(message: Mapping[str, Any]) -> list[str]:
    """Texts of a message, without what the program says of its surroundings."""
    content = message.get("content")
    blocks: list[Json] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[Json]", content)
    )
    said = [str(block["text"]) for block in blocks if block.get("type") == "text"]
    return [text for text in said if not text.startswith("<system-reminder>")]


def results(request: Mapping[str, Any]) -> dict[str, str]:
    """Texts of all results of calls since the model spoke last, by call."""
    found: dict[str, str] = {}
    for message in reversed(cast("Sequence[Json]", request["messages"])):
        if message.get("role") == "assistant":
            break
        if isinstance(content := message.get("content"), list):
            for block in cast("list[Json]", content):
                if block.get("type") == "tool_result":
                    found[str(block["tool_use_id"])] = _result(block.get("content"))
    return found


def files(request: Mapping[str, Any]) -> list[str]:
    """SHA-256 of the files in the newest message that carries a script, hexadecimal."""
    for message in reversed(cast("Sequence[Json]", request["messages"])):
        if message.get("role") == "user" and any(_script(text) is not None for text in texts(message)):
            content = message["content"]
            blocks = cast("list[Json]", content) if isinstance(content, list) else []
            return [_digest(block["source"]) for block in blocks if block.get("type") in ("image", "document")]
    return []


def _digest(source: Json) -> str:
    data = str(source["data"])
    return hashlib.sha256(base64.b64decode(data) if source["type"] == "base64" else data.encode()).hexdigest()


def heard(request: Mapping[str, Any]) -> list[str]:
    """Texts since the model spoke last."""
    said: list[str] = []
    for message in reversed(cast("Sequence[Json]", request["messages"])):
        if message.get("role") == "assistant":
            break
        said[:0] = texts(message)
    return said


def _has_results(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(
        block.get("type") == "tool_result" for block in cast("list[Json]", content)
    )


def _result(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in cast("list[Json]", content))
    return str(content)


def _script(text: str) -> list[Answer] | None:
    at = text.find(MARK)
    if at < 0:
        return None
    found: list[Answer]
    found, _ = json.JSONDecoder().raw_decode(text, at + len(MARK))
    return found


def _conversation(messages: Sequence[Json]) -> str:
    said = ["".join(texts(message)).strip() for message in messages if message.get("role") == "user"]
    said = [text for text in said if text]
    if len(said) < 2:
        return f"This is turn {len(said)}."
    return f"This is turn {len(said)}; before that you said: {said[-2][:2000]}"
