"""Rehearsals: the words of the Python SDK for what no provider can be made to say, which the adapter then plays itself (certification, Rehearsals)."""

import json
from typing import Any

from conformance.drivers.driver import Driver
from conformance.failure import Broken, CannotExpressError
from conformance.plane.rehearsals import KEY
from conformance.scenario import CountUsage, Crash, Emit, FailWith, Hang, OwnTool, Say, Step, Steps, Think


def rehearsed(steps: Steps) -> str:
    """The message that makes an adapter play these steps itself. Raises CannotExpressError for what cannot be rehearsed."""
    return json.dumps({KEY: [played for step in steps for played in _steps(step)]})


def _steps(step: Step) -> list[dict[str, Any]]:
    match step:
        case OwnTool(call_id, name, arguments, result, error):
            ended = {"outcome": "TOOL_OUTCOME_SUCCESS", "result": result}
            if error is not None:
                ended = {"outcome": "TOOL_OUTCOME_ERROR", "error": {"code": error[0], "message": error[1]}}
            called = {"tool_call_id": call_id, "tool_name": name, "arguments": arguments}
            return [
                {"emit": {"type": "tool.started", "data": called}},
                {"emit": {"type": "tool.completed", "data": {"tool_call_id": call_id, **ended}}},
            ]
        case _:
            return [_step(step)]


def _step(step: Step) -> dict[str, Any]:
    match step:
        case Say(text, pieces):
            return {"text": text or "".join(pieces), **({"chunks": list(pieces)} if pieces else {})}
        case Think(text):
            return {"reasoning": text}
        case CountUsage(read, written):
            return {"usage": {"input_tokens": read, "output_tokens": written, "final": True}}
        case FailWith(category, message, code, retryable, retry_after):
            asked = {"code": code or None, "retryable": retryable, "retry_after": retry_after}
            given = {name: value for name, value in asked.items() if value is not None}
            return {"fail": {"category": category, "message": message, **given}}
        case Crash(text):
            return {"raise": text}
        case Hang():
            return {"hang": True}
        case Emit(type_, data):
            return {"emit": {"type": type_, "data": data}}
        case _:
            raise CannotExpressError(f"A rehearsal has no words for {type(step).__name__}: a provider has to play it.")


class RehearsalDriver(Driver):
    """For an adapter whose provider cannot be steered at all: everything but plain conversation is rehearsed, and the report says so of each case."""

    name = "rehearsal"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """Faults are allowed; the planted secret stands under a name that nothing reads."""
        return {"allow_faults": True, "kit_note": canary}

    def message(self, *turns: Steps) -> str:
        """One rehearsal. What a resume plays would need a pause, and there is none."""
        if len(turns) > 1:
            raise CannotExpressError("A rehearsal has no pauses.")
        return rehearsed(tuple(step for steps in turns for step in steps))

    def talk(self, said: str) -> str:
        """Plain text is conversation."""
        return said

    def burst(self, count: int, size: int) -> str:
        """One step."""
        return json.dumps({KEY: [{"burst": {"count": count, "size": size}}]})

    def decision_in(self, text: str) -> dict[str, Any]:
        """Nothing asks a person, so nobody is told what was decided."""
        raise Broken(f"The model was told no decision: {text[:120]!r}.")
