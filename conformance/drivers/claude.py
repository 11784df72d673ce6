"""Drives the Claude Agent SDK by a model that plays scripts: a stand-in of the Messages API reads what to answer from the newest message of a person.

The script is JSON behind a mark, a list of answers, one for each request since that message; a resume goes on with the next. What no model says (a
failure in the kit's words, an exception of the adapter's, an event of the contract) the adapter rehearses, under a profile that allows faults.

An adapter host is told where the model is by `HARNESS_CLAUDE_BASE_URL`, and by `HARNESS_CLAUDE_CREDENTIAL_FILE` of a file with its credential. Workers
reach it at `HARNESS_CLAUDE_MODEL_ADDRESS`, `host:port` or `unix:/path`, with the token of each run. `HARNESS_CLAUDE_SKILLS` is a folder that the target
can read, with a folder of each skill; the last word of a `SKILL.md` has to stand nowhere else.
"""

import json
import os
import secrets
from pathlib import Path
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

MARK = "@messages-script "
SUBAGENT = "helper"
BASE_URL, CREDENTIAL_FILE = "HARNESS_CLAUDE_BASE_URL", "HARNESS_CLAUDE_CREDENTIAL_FILE"
MODEL_ADDRESS, SKILLS = "HARNESS_CLAUDE_MODEL_ADDRESS", "HARNESS_CLAUDE_SKILLS"
# In the profile, and with nothing to be read.
_UNREADABLE = "kit-unreadable"
_STATUS = {"configuration": 400, "authentication": 401, "authorization": 403, "throttled": 429, "unavailable": 529}
_DISMISSED = "The person dismissed the question"
_IN_STREAM = ("unavailable",)
Answer = list[dict[str, Any]] | dict[str, Any]


class ClaudeDriver(Driver):
    """Its message carries what the model answers."""

    name = "claude"

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """The stand-in as the model. No setting is free for the canary, so it is the prompt of a subagent, which no script calls."""
        settings: dict[str, Any] = {
            "model": "claude-standin-1",
            "max_retries": 0,
            "allow_faults": True,
            "subagents": {
                SUBAGENT: {"description": "Helps.", "prompt": "Help."},
                "silent": {"description": "Never called.", "prompt": canary},
            },
        }
        if url := os.environ.get(BASE_URL):
            settings["base_url"] = url
        if path := os.environ.get(CREDENTIAL_FILE):
            settings["credential_file"] = path
        if folder := os.environ.get(SKILLS):
            settings["skills"] = {skill: str(Path(folder, skill)) for skill in (*self.skills(), _UNREADABLE)}
        return settings

    def skills(self) -> dict[str, str]:
        """Those of the folder."""
        folder = os.environ.get(SKILLS)
        found = sorted(Path(folder).glob("*/SKILL.md")) if folder else []
        return {path.parent.name: path.read_text("utf-8").split()[-1] for path in found}

    def blocked_skill(self) -> str:
        """One whose folder is not there."""
        return _UNREADABLE if SKILLS in os.environ else ""

    def model_address(self) -> str:
        """Where workers reach the model."""
        return os.environ.get(MODEL_ADDRESS, "")

    def options(self) -> dict[str, Any]:
        """A form is a call of the tool that asks."""
        return {"ask_person": True}

    def message(self, *turns: Steps) -> str:
        """The answers of all turns, one behind the other: the model does not know that a person decided in between."""
        steps = [step for steps in turns for step in steps]
        if not all(_is_said_by_the_provider(number, step) for number, step in enumerate(steps)):
            return rehearsed(tuple(steps))
        return _marked([answer for steps in turns for answer in _answers(steps)])

    def talk(self, said: str) -> str:
        """Plain text is conversation."""
        return said

    def burst(self, count: int, size: int) -> str:
        """One block of so many deltas."""
        return _marked([[{"burst": [count, size]}]])

    def decision_in(self, text: str) -> dict[str, Any]:
        """What the model was told of its calls since it spoke last, as JSON by call."""
        try:
            told: dict[str, str] = json.loads(text)
            (said,) = told.values()
            return {"dismiss": True} if said.startswith(_DISMISSED) else {"form": json.loads(said)}
        except (ValueError, AttributeError):
            raise Broken(f"The model was told no decision: {text[:120]!r}.") from None


def _marked(answers: list[Answer]) -> str:
    return MARK + json.dumps(answers)


def _answers(steps: Steps) -> list[Answer]:
    """The steps cut into answers: one ends with each call, and one that fails at once is none."""
    made: list[Answer] = []
    current: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        if isinstance(step, FailWith) and not current:
            made.append(_refusal(step))
            return made
        # Calls of one answer are made together; whatever else is said comes before the one that is made next.
        current += [_step(each, number) for each in (step.calls if isinstance(step, CallTogether) else (step,))]
        if isinstance(step, CallTool | CallTogether | AskForm | Delegate | UseSkill):
            made.append(current)
            # What stands in a skill is told to the model once it has called for it.
            current = [{"heard": True}] if isinstance(step, UseSkill) else []
    if current:
        made.append(current)
    return made


def _step(step: Step, number: int) -> dict[str, Any]:
    match step:
        case Say(text, pieces):
            return {"text": list(pieces) if pieces else [text]}
        case Think(text):
            return {"thinking": text}
        case CountUsage(read, written):
            # And nothing else: the counts of a cache are not given.
            unknown = {"cache_read_input_tokens": None, "cache_creation_input_tokens": None}
            return {"usage": {"input_tokens": read, "output_tokens": written, **unknown}}
        case CallTool(call_id, tool_id, arguments, _):
            return _call(call_id, f"mcp__harness__{tool_id.replace('.', '_')}", arguments)
        case AskForm(fields, prompt):
            form = {"prompt": prompt, "fields": [_field(each) for each in fields]}
            return _call(f"ask-{number}", "mcp__harness__ask_person", form)
        case TellDecision():
            return {"results": True}
        case TellFiles():
            return {"files": True}
        case UseSkill(skill_id):
            # The program knows calls of a conversation by their ids.
            return _call(f"skill-{secrets.token_hex(4)}", "Skill", {"skill": f"harness:{skill_id}"})
        case Delegate(agent_id, inner):
            return _delegate(agent_id, inner)
        case FailWith():
            return {"error": {"type": "overloaded_error", "message": "Overloaded"}}
        case Hang():
            return {"hang": True}
        case _:
            raise CannotExpressError(_why_not(step))


def _why_not(step: Step) -> str:
    told = {
        "AskApproval": "The provider asks about no calls of its own: calls wait where the tool broker says so.",
    }
    return told.get(type(step).__name__, f"The driver `claude` has no words for {step}.")


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_use": {"id": call_id, "name": name, "input": arguments}}


def _delegate(agent_id: str, steps: Steps) -> dict[str, Any]:
    if any(isinstance(step, Delegate) for step in steps):
        raise CannotExpressError("A subagent of the program has no subagents.")
    if any(isinstance(step, AskForm) for step in steps):
        raise CannotExpressError("A subagent of the program cannot ask a person.")
    # The subagent's own messages begin with its prompt, which carries its script. The harness names it by its call.
    arguments = {"subagent_type": SUBAGENT, "description": "Help", "prompt": _marked(_answers(steps))}
    return _call(agent_id, "Agent", arguments)


def _refusal(step: FailWith) -> dict[str, Any]:
    return {"status": _STATUS[step.category]}


def _is_said_by_the_provider(number: int, step: Step) -> bool:
    """Whether a provider has words for a step at this place; what it has none for, only the adapter itself can play."""
    match step:
        case FailWith(category):
            # The program waits by the provider's hint as long as it likes, and tells another.
            return step.in_own_words and step.retry_after is None and category in (_IN_STREAM if number else _STATUS)
        case Crash() | Emit() | OwnTool():
            return False
        case _:
            return True


def _field(field: FormField) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": field.name,
        "label": field.label or field.name,
        "type": field.type,
        "required": field.required,
    }
    return {**made, "options": list(field.options)} if field.options else made
