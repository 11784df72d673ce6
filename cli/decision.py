"""Deciding on an interrupt: as it was written down, or asked for field by field and call by call on a terminal."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cli.api import Api, Broken, segment, unreachable
from cli.documents import read_document
from cli.errors import CommandError, ExitCode, usage_error
from cli.output import Output
from cli.text import json_line, safe_line
from cli.turn import START_ATTEMPTS, Watch, started

ANSWERS: Final = ("form_values", "dismiss", "tool_decisions")
_WORDS: Final = {"a": "approve", "r": "reject", "e": "edit"}


@dataclass(slots=True)
class Resume:
    """One decision to send. It names its interrupt, so that sending it again is the same run (I24)."""

    run_id: str
    given: dict[str, Any] | None
    request_id: str | None
    sent: bool = False
    watch: Watch | None = None

    @classmethod
    def create(cls, run_id: str, decision: str | None, dismiss: bool, request_id: str | None) -> Resume:
        """The decision as the command line describes it; None: to be asked for. Raises CommandError (exit 2)."""
        if dismiss:
            if decision is not None:
                raise usage_error("--dismiss and --decision are two decisions.", "Give one of them.")
            return cls(run_id, {"dismiss": True}, request_id)
        return cls(run_id, None if decision is None else written(decision), request_id)

    def interrupted(self) -> CommandError:
        """What Ctrl-C left behind."""
        if self.watch is not None:
            return self.watch.interrupted()
        if not self.sent:
            return CommandError(
                "Interrupted before the decision was sent: nothing was decided.",
                ExitCode.INTERRUPTED,
                "interrupted",
                f"Decide with `harness runs resume {self.run_id}`.",
                facts={"run_id": self.run_id},
            )
        return CommandError(
            "Interrupted before the mesh had answered: the decision may have been taken.",
            ExitCode.INTERRUPTED,
            "interrupted",
            f"Find out by sending the same decision again: `harness runs resume {self.run_id}`.",
            facts={"run_id": self.run_id},
        )


def written(decision: str) -> dict[str, Any]:
    """The decision in JSON, or in a file (`-` is standard input). Raises CommandError that says where it is wrong."""
    if decision.lstrip().startswith("{"):
        try:
            value = json.loads(decision, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise usage_error(
                "--decision is no JSON object.", "For example --decision '{\"dismiss\": true}'."
            ) from None
    else:
        value = read_document(decision).value
    if sum(name in value for name in ANSWERS) != 1:
        raise usage_error(
            f"--decision must have exactly one of {', '.join(ANSWERS)}.",
            'For example {"form_values": {"city": "Rome"}} or '
            '{"tool_decisions": {"decisions": [{"tool_call_id": "c1", "approve": true}]}}.',
        )
    return value


async def resume_and_watch(api: Api, output: Output, resume: Resume, *, detach: bool) -> int:
    """Sends the decision and, unless detached, watches the run that goes on with it to its end; the exit code says how that ended."""
    body = await _body(api, output, resume)
    if resume.request_id is not None:
        body["client_request_id"] = resume.request_id
    resume.sent = True
    run = await _send(api, f"/api/v1/runs/{segment(resume.run_id)}/resume", body)
    resume.watch = Watch(run["run_id"], reached=True, rejections=_rejections(body))
    return await started(output, resume.watch, run, api, detach=detach)


def _rejections(body: dict[str, Any]) -> dict[str, str]:
    """The reasons that the mesh has just taken, by call."""
    decided = body.get("tool_decisions")
    calls = decided.get("decisions") if isinstance(decided, dict) else None
    return {
        str(call.get("tool_call_id")): call["reject"]
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict) and isinstance(call.get("reject"), str)
    }


async def _body(api: Api, output: Output, resume: Resume) -> dict[str, Any]:
    given = resume.given
    if given is not None and "interrupt_id" in given and "revision" in given:
        return given
    run = await api.get(f"/api/v1/runs/{segment(resume.run_id)}")
    path = f"/api/v1/conversations/{segment(run['conversation_id'])}/interrupt-state"
    state = await api.get(path, {"agent_id": run["agent_id"]})
    if state is None or state["run_id"] != resume.run_id:
        raise CommandError(
            f"Run {resume.run_id} has no interrupt that waits for a decision.",
            ExitCode.CONFLICT,
            "not_pending",
            "See where it stands with `harness runs show`. A decision that names interrupt_id and revision can be sent again.",
        )
    answer = given if given is not None else _asked_for(output, state)
    return {"interrupt_id": state["interrupt_id"], "revision": state["revision"], **answer}


async def _send(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    attempt = 1
    while True:
        try:
            return await api.post(path, body)
        except Broken as broken:
            if attempt == START_ATTEMPTS:
                raise unreachable(api.connection.url, broken.reason) from None
        attempt += 1


def _asked_for(output: Output, state: dict[str, Any]) -> dict[str, Any]:
    if output.as_json or not sys.stdin.isatty():
        raise usage_error(
            "There is nobody to ask: standard input is no terminal.",
            f"Give the decision with --decision or --dismiss. What is asked: {json_line(state)}",
        )
    output.note(safe_line(state["prompt"] or "The run waits for a decision."), "magenta")
    try:
        with _ended_by_ctrl_c():
            if state["fields"]:
                return {"form_values": _form(output, state["fields"])}
            return {"tool_decisions": {"decisions": [_call(output, call) for call in state["tool_approvals"]]}}
    except EOFError:
        raise usage_error("The answers ended before all was answered.", "Nothing was decided: start again.") from None


def _form(output: Output, fields: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields:
        label = safe_line(field["label"] or field["name"])
        hint = f" ({', '.join(field['options'])})" if field["options"] else ""
        optional = "" if field["required"] else " [empty: none]"
        if field["description"]:
            output.note(safe_line(field["description"]))
        value = _until(f"{label}{hint}{optional}: ", lambda text, field=field: _value(field, text))
        if value is not None:
            values[field["name"]] = value
    return values


def _value(field: dict[str, Any], text: str) -> Any:
    """The value a person typed; None for none. Raises ValueError with what is expected."""
    if not text:
        if field["required"]:
            raise ValueError("A value is needed.")
        return None
    if field["type"] == "number":
        number = float(text)
        if not math.isfinite(number):
            raise ValueError("A finite number is needed.")
        return int(number) if number.is_integer() else number
    if field["type"] == "boolean":
        if text.lower() not in ("y", "yes", "true", "n", "no", "false"):
            raise ValueError("Answer yes or no.")
        return text.lower() in ("y", "yes", "true")
    if field["type"] == "choice" and text not in field["options"]:
        raise ValueError(f"Choose one of: {', '.join(field['options'])}.")
    return text


def _call(output: Output, call: dict[str, Any]) -> dict[str, Any]:
    allowed = [word for word in _WORDS.values() if word in call["allowed"]]
    output.note(safe_line(f"→ {call['tool_name']} {json_line(call['arguments'] or {})}"), "cyan")
    question = f"{', '.join(f'[{word[0]}]{word[1:]}' for word in allowed)}: "
    word = _until(question, lambda text: _word(text, allowed))
    decision: dict[str, Any] = {"tool_call_id": call["tool_call_id"]}
    if word == "approve":
        return decision | {"approve": True}
    if word == "reject":
        return decision | {"reject": _until("Why (told to the model): ", str)}
    return decision | {"edit": _until("Arguments as JSON: ", _object)}


def _word(text: str, allowed: list[str]) -> str:
    word = _WORDS.get(text.lower(), text.lower())
    if word not in allowed:
        raise ValueError(f"Answer with one of: {', '.join(allowed)}.")
    return word


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("It is nested too deeply.") from None
    if not isinstance(value, dict):
        raise ValueError("One JSON object is needed.")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON.")


def _until(question: str, read: Callable[[str], Any]) -> Any:
    """Asks until what is typed can be read."""
    while True:
        sys.stderr.write(question)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        try:
            if any("\ud800" <= character <= "\udfff" for character in line):
                raise ValueError("What was typed is not readable as text.")
            return read(line.strip())
        except ValueError as error:
            sys.stderr.write(f"{safe_line(str(error))}\n")


@contextmanager
def _ended_by_ctrl_c() -> Generator[None]:
    """While a person is waited for nothing else is: Ctrl-C ends that at once, where the event loop would hear of it after the answer."""
    of_the_loop = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, of_the_loop)
