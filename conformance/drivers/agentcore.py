"""Drives the AgentCore adapter against a stand-in of the service that plays the scripts in messages.

What the service's model cannot say (a failure in the kit's words, an event that the service does not have) the adapter rehearses, under a profile
that allows faults. A subagent and an approval of the provider's own have no words at all.
"""

import json
import os
from typing import Any

from conformance.drivers.driver import Driver
from conformance.drivers.rehearsal import rehearsed
from conformance.failure import Broken, CannotExpressError
from conformance.scenario import (
    AskForm,
    CallTogether,
    CallTool,
    CountUsage,
    Crash,
    Emit,
    FailWith,
    FormField,
    Hang,
    OwnTool,
    Say,
    Step,
    Steps,
    TellDecision,
    Think,
)

ENDPOINT_VARIABLE = "HARNESS_CERTIFY_AGENTCORE_ENDPOINT"
"""Where the stand-in is: `http://127.0.0.1:PORT`."""
REGION = "eu-central-1"
HARNESS_ARN = f"arn:aws:bedrock-agentcore:{REGION}:123456789012:harness/certified-0123456789"

_REFUSALS = {
    "configuration": "ValidationException",
    "authentication": "UnauthorizedException",
    "authorization": "AccessDeniedException",
    "capacity": "ServiceQuotaExceededException",
    "throttled": "ThrottlingException",
    "unavailable": "InternalServerException",
}
"""Categories that an error of the service says in the place of a stream."""
_IN_STREAM = {"configuration": "validationException", "unavailable": "internalServerException", "internal": "unheardOf"}
"""Those that an exception in a stream says; the last is one that the service's model does not have."""
_STOPS = {"timeout": "timeout_exceeded", "cancelled": "interrupted", "protocol": "malformed_model_output"}
"""Those that a message says by why it stopped."""


class AgentCoreDriver(Driver):
    """Its message is a script of the stand-in; plain text is conversation."""

    name = "agentcore"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """A managed harness at the stand-in, under a profile that allows faults. The planted secret is the operator's remark."""
        endpoint = os.environ.get(ENDPOINT_VARIABLE, "")
        if not endpoint:
            raise CannotExpressError(f"The driver `agentcore` needs {ENDPOINT_VARIABLE}: the address of a stand-in.")
        return {
            "region": REGION,
            "endpoint_url": endpoint,
            "harness_arn": HARNESS_ARN,
            "allow_faults": True,
            "note": canary,
        }

    def message(self, *turns: Steps) -> str:
        """One script: what a resume plays comes after the stop for the call that was asked about."""
        steps = [step for steps in turns for step in steps]
        if not all(_is_said_by_the_service(number, step) for number, step in enumerate(steps)):
            return rehearsed(tuple(steps))
        return json.dumps({"script": [said for number, step in enumerate(steps) for said in _step(step, number)]})

    def talk(self, said: str) -> str:
        """Plain text is conversation."""
        return said

    def burst(self, count: int, size: int) -> str:
        """One step of the stand-in."""
        return json.dumps({"script": [{"burst": count, "size": size}]})

    def options(self) -> dict[str, Any]:
        """The model may ask a person."""
        return {"ask_person": True}

    def decision_in(self, text: str) -> dict[str, Any]:
        """The result of the call that asked, as the model tells it: the values, or none where the person dismissed the question."""
        try:
            (result,) = json.loads(text)
            told = result["content"][0].get("json", {})
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Broken(f"The model was given no result of the one call that asked: {text[:120]!r}.") from None
        return {"form": told["values"]} if "values" in told else {"dismiss": True}


def _is_said_by_the_service(number: int, step: Step) -> bool:
    """Whether the service has words for a step at this place; what it has none for, only the adapter itself can play."""
    match step:
        case FailWith(category, retry_after=None):
            known = {*_STOPS, *(_IN_STREAM if number else _REFUSALS)}
            return step.in_own_words and category in known
        case FailWith(category):
            # When to come again is told in the place of a stream only.
            return step.in_own_words and not number and category in _REFUSALS
        case Emit(type_, _):
            return type_ in ("tool.completed", "tool.started")
        case OwnTool(error=error):
            # That it failed the service can say, with which code it cannot.
            return error is None
        case _:
            return True


def _step(step: Step, number: int) -> list[dict[str, Any]]:
    match step:
        case Say(text, pieces):
            return [{"chunks": list(pieces)} if pieces else {"text": text}]
        case Think(text):
            return [{"reasoning": text}]
        case CountUsage(read, written):
            return [{"usage": {"inputTokens": read, "outputTokens": written}}]
        case CallTool(call_id, tool_id, arguments, stream):
            call = {"id": call_id, "name": tool_id, "arguments": arguments}
            return [{"tools": [call], "pieces": 5 if stream else 1}]
        case CallTogether(calls):
            named = [{"id": call.call_id, "name": call.tool_id, "arguments": call.arguments} for call in calls]
            return [{"tools": named, "pieces": 1}]
        case OwnTool(call_id, name, arguments, result, None):
            return [{"own_tool": {"id": call_id, "name": name, "arguments": arguments, "result": result}}]
        case AskForm(fields, prompt):
            form = {"prompt": prompt, "fields": [_field(each) for each in fields]}
            return [{"tools": [{"id": "ask-1", "name": "ask_person", "arguments": form}]}]
        case TellDecision():
            return [{"results": True}]
        case FailWith(category) if category in _STOPS:
            return [{"text": "So far."}, {"stop": _STOPS[category]}]
        case FailWith(category, _, _, _, retry_after) if number == 0:
            refusal = {"refuse": _REFUSALS[category]}
            return [refusal if retry_after is None else {**refusal, "retry_after": retry_after}]
        case FailWith(category):
            return [{"exception": _IN_STREAM[category]}]
        case Crash(text):
            return [{"exception": _IN_STREAM["internal"], "message": text}]
        case Hang():
            return [{"hang": "stream"}]
        case Emit("tool.completed", {"tool_call_id": str(call_id)}):
            start = {"toolResult": {"toolUseId": call_id, "status": "success"}}
            return [
                {"event": "messageStart", "data": {"role": "user"}},
                {"event": "contentBlockStart", "data": {"contentBlockIndex": 0, "start": start}},
                {"event": "contentBlockStop", "data": {"contentBlockIndex": 0}},
                {"event": "messageStop", "data": {"stopReason": "tool_result"}},
            ]
        case Emit("tool.started", {"tool_call_id": str(call_id), "tool_name": str(name)}):
            own = {"id": call_id, "name": name, "arguments": {}, "result": "never told"}
            return [{"own_tool": own}]
        case _:
            raise CannotExpressError(f"AgentCore has no words for {step}.")


def _field(field: FormField) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": field.name,
        "type": field.type,
        "required": field.required,
        "label": field.label or field.name,
    }
    return {**made, "options": list(field.options)} if field.options else made
