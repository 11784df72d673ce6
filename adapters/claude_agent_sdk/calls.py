"""Names and results of tool calls, between what the program says and what the contract does."""

import hashlib
import re
from typing import Any, cast

import orjson

from adapters.sdk import events
from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS
from adapters.sdk.tool_answers import ToolResult
from harness.event.v1 import event_pb2, payload_pb2

SERVER = "harness"
"""The in-process server that the agent's portable tools stand in."""
PREFIX = f"mcp__{SERVER}__"
MAX_MESSAGE_CHARACTERS = 1_000
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ROOM_BYTES = 4 * 1024


def call_id(given: str) -> str:
    """The id of a call in the contract: the model's own, unless no event could hold it."""
    if _ID.fullmatch(given):
        return given
    return f"call-{hashlib.blake2b(given.encode(), digest_size=16, person=b'claude-call').hexdigest()}"


def local_name(name: str) -> str | None:
    """The name of a tool within the in-process server, None for any other tool."""
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def content_of(result: ToolResult, edited: dict[str, Any] | None = None, reason: str = "") -> dict[str, Any]:
    """What the model reads of a call, as the fields of its `tool_result`. `edited`: the arguments a person put in the place of the model's;
    `reason`: why a person refused it.
    """
    outcome, error = result.completed.outcome, result.error
    if outcome == payload_pb2.TOOL_OUTCOME_SUCCESS:
        said = (
            [_told(result.value)] if not result.completed.result_ref else ["The result is kept apart; it is too large."]
        )
    elif outcome == payload_pb2.TOOL_OUTCOME_REJECTED:
        said = [f"A person did not allow this call, and it was not made. {reason or error.message}".strip()]
    elif outcome == payload_pb2.TOOL_OUTCOME_CANCELLED:
        said = ["The call was cancelled."]
    else:
        said = [f"{error.code}: {error.message}"]
    if edited is not None:
        said.insert(
            0,
            f"A person changed the arguments of this call to {orjson.dumps(edited, option=orjson.OPT_SORT_KEYS).decode()}.",
        )
    return text_content(*said, is_error=outcome != payload_pb2.TOOL_OUTCOME_SUCCESS)


def text_content(*texts: str, is_error: bool) -> dict[str, Any]:
    """Texts as the fields of a `tool_result`."""
    return {"content": [{"type": "text", "text": text} for text in texts], "is_error": is_error}


def builtin_completed(
    tool_call_id: str, content: object, *, is_error: bool, namespace: tuple[str, ...]
) -> event_pb2.EventDraft:
    """The end of a call that the program made itself."""
    said = plain_text(content)
    if is_error:
        message = said[:MAX_MESSAGE_CHARACTERS] or "The tool failed."
        return events.tool_failed(tool_call_id, "tool_failed", message, namespace=namespace)
    size = len(orjson.dumps(said))
    if size > DEFAULT_LIMITS.result_bytes - _ROOM_BYTES:
        said = f"The result is not shown: it has {size} bytes."
    return events.tool_succeeded(tool_call_id, said, namespace=namespace)


def plain_text(content: object) -> str:
    """The texts of a result, joined; what is no text is named by its type."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "[content]"
    said: list[str] = []
    for block in cast("list[object]", content):
        match block:
            case {"type": "text", "text": str(text)}:
                said.append(text)
            case {"type": str(kind)}:
                said.append(f"[{kind}]")
            case _:
                said.append("[content]")
    return "\n".join(said)


def _told(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
