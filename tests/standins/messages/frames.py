"""An answer as the API tells it: as server-sent events, or as one document."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.standins.messages.script import Json, files, heard, results

_numbers = itertools.count(1)
USAGE: Mapping[str, Any] = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "service_tier": "standard",
}
# Steps that are no part of a message: faults and pauses, carried out where they stand.
CONTENT = ("text", "thinking", "tool_use", "burst", "results", "files", "heard")


def frame(kind: str, **data: Any) -> bytes:
    """One event of the stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def opening(request: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
    """message_start: the counts of what was read, and next to nothing written yet."""
    return frame("message_start", message=_message(request, [], None, {**usage, "output_tokens": 1}))


def usage_of(steps: Sequence[Json]) -> dict[str, Any]:
    """The counts of an answer; one that is null in the script is not given at all."""
    given = next((step["usage"] for step in reversed(steps) if "usage" in step), {})
    return {name: count for name, count in {**USAGE, **given}.items() if count is not None}


def stop_reason(steps: Sequence[Json]) -> str:
    """Why the model stopped."""
    given = next((step["stop_reason"] for step in steps if "stop_reason" in step), None)
    return str(given or ("tool_use" if any("tool_use" in step for step in steps) else "end_turn"))


def block_frames(step: Json, index: int, request: Mapping[str, Any]) -> Iterator[bytes]:
    """The events of one content block."""
    block, deltas = _streamed(step, request)
    yield frame("content_block_start", index=index, content_block=block)
    if index == 0:
        yield frame("ping")
    for delta in deltas:
        yield frame("content_block_delta", index=index, delta=delta)
    yield frame("content_block_stop", index=index)


def closing(steps: Sequence[Json]) -> bytes:
    """message_delta and message_stop: why it stopped, and the last counts."""
    usage = usage_of(steps)
    delta = {"stop_reason": stop_reason(steps), "stop_sequence": None}
    return frame("message_delta", delta=delta, usage=usage) + frame("message_stop")


def document(steps: Sequence[Json], request: Mapping[str, Any]) -> Json:
    """The answer to a request that wants no stream."""
    content: list[Json] = []
    for step in steps:
        if not any(kind in step for kind in CONTENT):
            continue
        block, deltas = _streamed(step, request)
        match block["type"]:
            case "text":
                block = {**block, "text": "".join(delta["text"] for delta in deltas)}
            case "thinking":
                block = {"type": "thinking", "thinking": step["thinking"], "signature": _SIGNATURE}
            case _:
                block = {**block, "input": step["tool_use"]["input"]}
        content.append(block)
    return _message(request, content, stop_reason(steps), usage_of(steps))


_SIGNATURE = "c2lnbmF0dXJl"


def _streamed(step: Json, request: Mapping[str, Any]) -> tuple[Json, Iterator[Json]]:
    if "thinking" in step:
        deltas: list[Json] = [
            {"type": "thinking_delta", "thinking": step["thinking"]},
            {"type": "signature_delta", "signature": _SIGNATURE},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, iter(deltas)
    if "tool_use" in step:
        call = step["tool_use"]
        pieces: Sequence[str] = call.get("pieces") or _halves(json.dumps(call["input"]))
        block = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
        return block, ({"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces))
    if "burst" in step:
        count, size = step["burst"]
        return {"type": "text", "text": ""}, ({"type": "text_delta", "text": "x" * size} for _ in range(count))
    said: Sequence[str]
    if "results" in step:
        said = [json.dumps(results(request))]
    elif "files" in step:
        said = ["\n".join(files(request))]
    else:
        said = ["\n".join(heard(request))] if "heard" in step else step["text"]
    return {"type": "text", "text": ""}, ({"type": "text_delta", "text": piece} for piece in said)


def _halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    return text[:middle], text[middle:]


def _message(request: Mapping[str, Any], content: Sequence[Json], stop: str | None, usage: Mapping[str, Any]) -> Json:
    return {
        "id": f"msg_{next(_numbers):08d}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "claude"),
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": dict(usage),
    }
