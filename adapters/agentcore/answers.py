"""Names and results of the agent's own calls, as the service takes them."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from adapters.sdk.tool_answers import ToolResult
from harness.event.v1 import payload_pb2

MAX_DESCRIPTION_CHARACTERS = 4_096
Answer = dict[str, Any]


def answer_of(call_id: str, result: ToolResult, edited: Mapping[str, Any] | None = None, reason: str = "") -> Answer:
    """What the model reads of a call. `edited`: the arguments a person put in the place of the model's; `reason`: why a person refused it."""
    outcome, error = result.completed.outcome, result.error
    told: dict[str, Any] = {}
    if outcome == payload_pb2.TOOL_OUTCOME_SUCCESS:
        too_large = "The result is kept apart; it is too large."
        told = {"result": too_large if result.completed.result_ref else result.value}
    elif outcome == payload_pb2.TOOL_OUTCOME_REJECTED:
        told = {"rejected": f"A person did not allow this call, and it was not made. {reason or error.message}".strip()}
    elif outcome == payload_pb2.TOOL_OUTCOME_CANCELLED:
        told = {"cancelled": "The call was cancelled."}
    else:
        told = {"error": error.message, "code": error.code}
    if edited is not None:
        told["arguments_changed_by_a_person"] = dict(edited)
    return tool_result(call_id, told, failed=outcome != payload_pb2.TOOL_OUTCOME_SUCCESS)


def refusal(call_id: str, message: str) -> Answer:
    """The answer to a call that was not made."""
    return tool_result(call_id, {"error": message}, failed=True)


def tool_result(call_id: str, told: Mapping[str, Any], *, failed: bool) -> Answer:
    """A block for the next invocation of the session."""
    status = "error" if failed else "success"
    return {"toolResult": {"toolUseId": call_id, "content": [{"json": dict(told)}], "status": status}}


def plain(struct: Any) -> dict[str, Any]:
    """A Struct as JSON."""
    return json_format.MessageToDict(struct)
