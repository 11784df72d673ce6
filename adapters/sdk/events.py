"""Typed constructors of the events an adapter yields (events, Vocabulary). Each returns a draft ready to be yielded.

Ids are at most 128 characters of `[A-Za-z0-9._:-]`. `namespace` is the path of subagent ids, empty at the root. Texts of
any length and with any characters may be given: the SDK splits and sanitises them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from google.protobuf import json_format, struct_pb2

from adapters.sdk.errors import ProtocolError
from harness.event.v1 import event_pb2, payload_pb2

MAX_STRUCT_DEPTH = 24
"""Deeper values do not survive the wire: each level is three messages, and readers stop at a hundred."""
Draft = event_pb2.EventDraft
Path = Sequence[str]
_Payload = payload_pb2.EventPayload


def text(body: str, *, message_id: str = "m1", namespace: Path = ()) -> Draft:
    """Text of an answer. A new `message_id` opens a new message."""
    draft = Draft()
    # Filled in place: half the cost of keyword arguments, for the event that there is most of.
    delta = draft.payload.content_delta
    delta.message_id = message_id
    delta.text = body
    if namespace:
        draft.namespace.extend(namespace)
    return draft


def reasoning(body: str, *, message_id: str = "r1", namespace: Path = ()) -> Draft:
    """Text of the model's reasoning."""
    draft = Draft()
    # Filled in place: half the cost of keyword arguments, for the event that there is most of.
    delta = draft.payload.reasoning_delta
    delta.message_id = message_id
    delta.text = body
    if namespace:
        draft.namespace.extend(namespace)
    return draft


def tool_started(
    tool_call_id: str,
    tool_name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    parent_message_id: str = "",
    namespace: Path = (),
) -> Draft:
    """A tool call begins. Leave `arguments` out if they follow as `tool_arguments` fragments."""
    started = payload_pb2.ToolStarted(
        tool_call_id=tool_call_id, tool_name=tool_name, parent_message_id=parent_message_id
    )
    if arguments is not None:
        started.arguments.CopyFrom(struct(arguments))
    return Draft(namespace=namespace, payload=_Payload(tool_started=started))


def tool_arguments(tool_call_id: str, fragment: str, *, namespace: Path = ()) -> Draft:
    """A fragment of the call's arguments; joined they must be one JSON object before the call succeeds."""
    delta = payload_pb2.ToolArgumentsDelta(tool_call_id=tool_call_id, delta=fragment)
    return Draft(namespace=namespace, payload=_Payload(tool_arguments_delta=delta))


def tool_succeeded(tool_call_id: str, result: Any = None, *, result_ref: str = "", namespace: Path = ()) -> Draft:
    """The tool answered. `result` is any JSON value of at most 256 KiB, None for nothing; a larger one goes behind `result_ref`."""
    completed = payload_pb2.ToolCompleted(
        tool_call_id=tool_call_id, outcome=payload_pb2.TOOL_OUTCOME_SUCCESS, result_ref=result_ref
    )
    if result is not None:
        json_format.ParseDict(result, completed.result)
    return Draft(namespace=namespace, payload=_Payload(tool_completed=completed))


def tool_failed(tool_call_id: str, code: str, message: str, *, retryable: bool = False, namespace: Path = ()) -> Draft:
    """The tool failed; `message` is a safe sentence."""
    completed = payload_pb2.ToolCompleted(
        tool_call_id=tool_call_id,
        outcome=payload_pb2.TOOL_OUTCOME_ERROR,
        error=payload_pb2.ToolError(code=code, message=message, retryable=retryable),
    )
    return Draft(namespace=namespace, payload=_Payload(tool_completed=completed))


def tool_rejected(tool_call_id: str, *, namespace: Path = ()) -> Draft:
    """A person or a policy refused the call."""
    completed = payload_pb2.ToolCompleted(tool_call_id=tool_call_id, outcome=payload_pb2.TOOL_OUTCOME_REJECTED)
    return Draft(namespace=namespace, payload=_Payload(tool_completed=completed))


def subagent_started(agent_id: str, parent_tool_call_id: str, agent_name: str = "", *, namespace: Path = ()) -> Draft:
    """A subagent begins; its own events carry `(*namespace, agent_id)` until `subagent_completed`."""
    started = payload_pb2.SubagentStarted(
        agent_id=agent_id, parent_tool_call_id=parent_tool_call_id, agent_name=agent_name
    )
    return Draft(namespace=namespace, payload=_Payload(subagent_started=started))


def subagent_completed(
    agent_id: str,
    parent_tool_call_id: str,
    outcome: "payload_pb2.ToolOutcome.ValueType" = payload_pb2.TOOL_OUTCOME_SUCCESS,
    *,
    namespace: Path = (),
) -> Draft:
    """The subagent ended. What it opened must have been closed."""
    completed = payload_pb2.SubagentCompleted(
        agent_id=agent_id, parent_tool_call_id=parent_tool_call_id, outcome=outcome
    )
    return Draft(namespace=namespace, payload=_Payload(subagent_completed=completed))


def usage(
    *,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cached_input_tokens: int | None = None,
    cost: float | None = None,
    currency: str = "",
    final: bool = False,
    namespace: Path = (),
) -> Draft:
    """What the run used so far. Leave out what is unknown; zero means known to be zero."""
    updated = payload_pb2.UsageUpdated(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_input_tokens,
        cost=cost,
        currency=currency,
        final=final,
    )
    return Draft(namespace=namespace, payload=_Payload(usage_updated=updated))


def warning(code: str, message: str, details: Mapping[str, Any] | None = None, *, namespace: Path = ()) -> Draft:
    """Something a person should know that does not end the run."""
    warned = payload_pb2.Warning(code=code, message=message)
    if details is not None:
        warned.details.CopyFrom(struct(details))
    return Draft(namespace=namespace, payload=_Payload(warning=warned))


def provider_metadata(provider: str, model: str = "", metadata: Mapping[str, Any] | None = None) -> Draft:
    """For telemetry only; never part of the log."""
    meta = payload_pb2.ProviderMetadata(provider=provider, model=model)
    if metadata is not None:
        meta.metadata.CopyFrom(struct(metadata))
    return Draft(payload=_Payload(provider_metadata=meta))


def session_updated(native_session_id: str) -> Draft:
    """The provider assigned or changed the native session of the binding."""
    return Draft(payload=_Payload(session_updated=payload_pb2.SessionUpdated()), native_session_id=native_session_id)


def completed(stop_reason: str = "end_turn") -> Draft:
    """The turn ended well: the last event of its stream."""
    return Draft(payload=_Payload(run_completed=payload_pb2.RunCompleted(stop_reason=stop_reason)))


def form_requested(
    interrupt_id: str, fields: Sequence[payload_pb2.FormField], prompt: str = "", *, namespace: Path = ()
) -> Draft:
    """The run asks a person for the values of a form. Only `interrupted` may follow, and what closes calls and subagents before it."""
    asked = payload_pb2.InterruptRequested(
        interrupt_id=interrupt_id,
        revision=1,
        interrupt_type=payload_pb2.INTERRUPT_TYPE_FORM_INPUT,
        prompt=prompt,
        fields=fields,
    )
    return Draft(namespace=namespace, payload=_Payload(interrupt_requested=asked))


def approval_requested(
    interrupt_id: str, approvals: Sequence[payload_pb2.ToolApproval], prompt: str = "", *, namespace: Path = ()
) -> Draft:
    """The run asks a person to decide on calls, none of which has started. Only `interrupted` may follow, as after `form_requested`."""
    asked = payload_pb2.InterruptRequested(
        interrupt_id=interrupt_id,
        revision=1,
        interrupt_type=payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL,
        prompt=prompt,
        tool_approvals=approvals,
    )
    return Draft(namespace=namespace, payload=_Payload(interrupt_requested=asked))


def interrupted(interrupt_id: str, reason: str = "The run waits for a decision.") -> Draft:
    """The turn ended with the interrupt it has requested: the last event of its stream. `HarnessRuntime.resume` goes on from there."""
    ended = payload_pb2.RunInterrupted(interrupt_id=interrupt_id, reason=reason)
    return Draft(payload=_Payload(run_interrupted=ended))


def struct(value: Mapping[str, Any]) -> struct_pb2.Struct:
    """A mapping of JSON values as a Struct. Raises ValueError or TypeError for what JSON cannot hold, ProtocolError for what is nested
    deeper than any event may be.
    """
    _check_depth(value, MAX_STRUCT_DEPTH)
    message = struct_pb2.Struct()
    message.update(dict(value))
    return message


def _check_depth(value: object, left: int) -> None:
    # Before a message is made of it: the library's own limit is an error nobody could classify.
    if not isinstance(value, Mapping | list | tuple):
        return
    if left == 0:
        raise ProtocolError(f"A value is nested more than {MAX_STRUCT_DEPTH} deep.", code="nested_too_deep")
    children = (
        cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else cast("Sequence[object]", value)
    )
    for child in children:
        _check_depth(child, left - 1)
