"""Drives whatever speaks the scripts of the reference harness, in any language (reference harness, table of steps)."""

import json
from typing import Any

from conformance.drivers.driver import Driver
from conformance.failure import Broken, CannotExpressError
from conformance.scenario import (
    ApprovalCall,
    AskApproval,
    AskForm,
    CallTogether,
    CallTool,
    CountUsage,
    Crash,
    Delegate,
    Emit,
    FailWith,
    FormField,
    Hang,
    OwnTool,
    Say,
    Step,
    Steps,
    TellDecision,
    TellFiles,
    Think,
    UseSkill,
)

_SKILLS = {"kit-tea": "Steep for three minutes: samovar.", "kit-coffee": "Grind before brewing: percolator."}
_BLOCKED = "kit-cocoa"


class ReferenceDriver(Driver):
    """Its message is its behaviour: a script, one script per turn, a burst, or plain text."""

    name = "reference"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """Faults are allowed, as in the profile `faults`; some skills, if the target reads them."""
        skills: dict[str, Any] = {skill: {"text": text} for skill, text in _SKILLS.items()}
        skills[_BLOCKED] = {"text": "Stir: marshmallow.", "blocked": "It is being looked at."}
        return {"allow_faults": True, "kit_note": canary, "skills": skills}

    def skills(self) -> dict[str, str]:
        """Two, by the last word of each."""
        return {skill: text.rpartition(" ")[2] for skill, text in _SKILLS.items()}

    def blocked_skill(self) -> str:
        """One that the operator blocks."""
        return _BLOCKED

    def message(self, *turns: Steps) -> str:
        """A script, or scripts."""
        scripts = [[_step(step) for step in steps] for steps in turns]
        return json.dumps({"script": scripts[0]} if len(scripts) == 1 else {"scripts": scripts})

    def talk(self, said: str) -> str:
        """Plain text is conversation."""
        return said

    def burst(self, count: int, size: int) -> str:
        """The burst message."""
        return json.dumps({"n": count, "size": size})

    def decision_in(self, text: str) -> dict[str, Any]:
        """One line of JSON."""
        try:
            told: object = json.loads(text)
        except ValueError:
            raise Broken(f"The step `decision` told no JSON: {text[:120]!r}.") from None
        if not isinstance(told, dict):
            raise Broken(f"The step `decision` told no decision: {text[:120]!r}.")
        return told


def _step(step: Step) -> dict[str, Any]:
    match step:
        case Say(text, pieces):
            return {"text": text, "chunks": list(pieces)} if pieces else {"text": text}
        case Think(text):
            return {"reasoning": text}
        case CountUsage(read, written):
            return {"usage": {"input_tokens": read, "output_tokens": written, "final": True}}
        case CallTool(call_id, tool_id, arguments, stream):
            call = {"id": call_id, "name": tool_id, "arguments": arguments}
            return {"tool": {**call, "stream_arguments": True} if stream else call}
        case OwnTool(call_id, name, arguments, result, error):
            ending = {"result": result} if error is None else {"error": {"code": error[0], "message": error[1]}}
            return {"tool_result": {"id": call_id, "name": name, "arguments": arguments, **ending}}
        case AskForm(fields, prompt):
            return {"interrupt": {"form": [_field(each) for each in fields], "prompt": prompt}}
        case AskApproval(calls, prompt):
            return {"interrupt": {"approve": [_call(each) for each in calls], "prompt": prompt}}
        case TellDecision():
            return {"decision": True}
        case TellFiles():
            return {"files": True}
        case UseSkill(skill_id):
            return {"skill": skill_id}
        case Delegate(agent_id, steps):
            return {"subagent": {"agent_id": agent_id, "script": [_step(each) for each in steps]}}
        case FailWith():
            return {"fail": _failure(step)}
        case Crash(text):
            return {"raise": text}
        case Hang():
            return {"hang": True}
        case Emit(type_, data):
            return {"emit": {"type": type_, "data": data}}
        case CallTogether():
            raise CannotExpressError("A script makes one call after the other.")


def _field(field: FormField) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": field.type, "required": field.required, "label": field.label}
    return {**made, "options": list(field.options)} if field.options else made


def _call(call: ApprovalCall) -> dict[str, Any]:
    return {"id": call.call_id, "name": call.name, "arguments": call.arguments, "allowed": list(call.allowed)}


def _failure(step: FailWith) -> dict[str, Any]:
    made: dict[str, Any] = {"category": step.category, "message": step.message}
    for name in ("code", "retryable", "retry_after"):
        if (value := getattr(step, name)) not in (None, ""):
            made[name] = value
    return made
