"""What the tool broker answers, and what its refusals are to the model that asked (tool broker contract)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from adapters.sdk.errors import AuthorizationError, HarnessError
from adapters.sdk.facade import AWAY, STALE_LEASE, information_of, status_of
from adapters.sdk.lifecycle import ProtocolViolation
from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS
from adapters.sdk.lifecycle.text import cleaned
from adapters.sdk.lifecycle.wellformed import check
from harness.event.v1 import event_pb2, payload_pb2

MAX_MESSAGE_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call ended: by success, error, rejection (by a person) or cancellation (of the run)."""

    completed: payload_pb2.ToolCompleted

    @property
    def succeeded(self) -> bool:
        """Whether the tool answered."""
        return self.completed.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS

    @property
    def value(self) -> Any:
        """The result as plain JSON, None if there is none."""
        return json_format.MessageToDict(self.completed.result) if self.completed.HasField("result") else None

    @property
    def error(self) -> payload_pb2.ToolError:
        """What went wrong, or why a person refused; empty otherwise. Safe to be shown."""
        return self.completed.error

    def draft(self, namespace: Sequence[str] = ()) -> event_pb2.EventDraft:
        """The `tool.completed` of the call. A result that no event can hold is left out of it, and said to be."""
        draft = event_pb2.EventDraft(namespace=namespace)
        completed = draft.payload.tool_completed
        completed.CopyFrom(self.completed)
        if completed.outcome != payload_pb2.TOOL_OUTCOME_ERROR:
            completed.ClearField("error")
        try:
            check(draft, "tool_completed", DEFAULT_LIMITS)
        except ProtocolViolation as violation:
            completed.result.string_value = f"The result is not shown: {violation.code}."
        return draft


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """The call waits for a person: the run is to be interrupted with it. It has not started."""

    approval: payload_pb2.ToolApproval


class BrokerError(HarnessError):
    """A status in the place of an answer."""

    def __init__(self, status: grpc.aio.AioRpcError) -> None:
        super().__init__("The tool broker refused the call.")
        self.status = status
        self._written = status_of(status)
        self._information = information_of(self._written)

    @property
    def has_no_room(self) -> bool:
        """Whether the broker is at its own bound, rather than the run at one of its bounds."""
        retryable = self._information.metadata.get("retryable") == "true"
        return self.status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and retryable

    def result(self, tool_call_id: str) -> ToolResult:
        """What the model is told. Raises AuthorizationError where the run is not this runtime's any more: nothing of it counts then."""
        code, reason = self.status.code(), self._information.reason
        if reason == STALE_LEASE or code is grpc.StatusCode.UNAUTHENTICATED:
            raise AuthorizationError(
                "The run takes no tool call of this runtime any more.",
                code="stale_lease" if reason == STALE_LEASE else "tool_token_refused",
                diagnostic=f"gRPC status {code.name}",
            )
        if self._written is None or not reason:
            away = code in (*AWAY, grpc.StatusCode.DEADLINE_EXCEEDED)
            message = "The tool could not be reached; the call may have had its effect."
            return failed(tool_call_id, "tool_unavailable" if away else "tool_failed", message, retryable=away)
        retryable = self._information.metadata.get("retryable") == "true"
        return failed(tool_call_id, reason.lower(), _said(self._written), retryable=retryable)


def _said(status: status_pb2.Status) -> str:
    """The broker's sentence, and the fields it is about: what a model needs to do better."""
    bad = error_details_pb2.BadRequest()
    fields = [
        f"{violation.field}: {violation.description}"
        for detail in status.details
        if detail.Unpack(bad)
        for violation in bad.field_violations
    ]
    return " ".join([status.message, *fields])


def failed(tool_call_id: str, code: str, message: str, *, retryable: bool = False) -> ToolResult:
    """A call that ended in an error; `message` is a safe sentence for the model."""
    error = payload_pb2.ToolError(
        code=code[:64], message=cleaned(message)[:MAX_MESSAGE_CHARACTERS], retryable=retryable
    )
    completed = payload_pb2.ToolCompleted(
        tool_call_id=tool_call_id, outcome=payload_pb2.TOOL_OUTCOME_ERROR, error=error
    )
    return ToolResult(completed)
