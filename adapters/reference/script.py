"""A script: steps that say exactly what the harness does, good or bad (reference harness, table of steps)."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf import json_format

from adapters.reference import calls, conversation, pause, probe, skills
from adapters.reference.attachments import Attachments
from adapters.reference.calls import Call, Waiting
from adapters.reference.message import MAX_SECONDS, Script, Scripted, Step, number
from adapters.reference.pause import Pause
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ERRORS_BY_CATEGORY, ConfigurationError, HarnessError, PersistenceError
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2

FAULTS = frozenset({"emit", "raise", "exit", "hang", "spin"})
# In an adapter host this would show one author the host that all share.
LOOKS = frozenset({"probe"})
MAX_SPIN_SECONDS = 60.0
# Steps whose counterpart in the control plane is not connected to this harness.
UNAVAILABLE = {
    "memory": ("memory_unavailable", "memory"),
}
Events = AsyncIterator[event_pb2.EventDraft]


@dataclass(slots=True)
class _Stage:
    """Where a script plays: its turn and what came with it, its namespace, and how many messages it has begun."""

    turn: Turn
    files: Attachments
    skills: Mapping[str, str]
    namespace: tuple[str, ...] = ()
    begun: list[int] = field(default_factory=lambda: [0])
    decision: runtime_pb2.ResumeDecision | None = None
    waiting: list[Waiting] = field(default_factory=list[Waiting])

    @property
    def interrupt_id(self) -> str:
        """Id of the turn's interrupt, if it has one and is given none."""
        return f"interrupt-{self.turn.number}"

    def next_id(self, prefix: str) -> str:
        self.begun[0] += 1
        return f"{prefix}{self.begun[0]}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for all scripts of a runtime: the guarded steps that are allowed, whether there is thread state, the texts of the agent's skills by id,
    and who is told of a pause.
    """

    allowed: frozenset[str]
    durable: bool
    skills: Mapping[str, str]
    paused: Callable[[Pause | None], None]


@dataclass(frozen=True, slots=True)
class _Act:
    """The scripts a turn belongs to, and which of them it plays."""

    scripts: list[Script]
    per_turn: bool
    memory: conversation.Memory

    @property
    def steps(self) -> Script:
        number = self.memory.turns if self.per_turn else 0
        return self.scripts[number] if number < len(self.scripts) else []


class _Paused(Exception):  # noqa: N818 - no error: the script ends here
    """The script ends here: a person is asked."""

    def __init__(self, interrupt_id: str, rest: Script | None = None) -> None:
        super().__init__(interrupt_id)
        self.interrupt_id = interrupt_id
        # What is still to be played once the calls that wait are decided on.
        self.rest = rest or []


async def stream(turn: Turn, asked: Scripted, setting: Setting, files: Attachments) -> Events:
    """Plays the script of this turn, then completes or pauses. Nothing is played if any step of it is refused."""
    memory = conversation.Memory()
    if asked.per_turn or _pauses(asked.scripts[0]):
        memory = await conversation.recall(turn, durable=setting.durable)
    act = _Act(asked.scripts, asked.per_turn, memory)
    async for event in _perform(_Stage(turn, files, setting.skills), act, act.steps, setting):
        yield event


async def resume(turn: Turn, decision: runtime_pb2.ResumeDecision, setting: Setting, kept: Pause | None) -> Events:
    """Plays the script after the one that paused. `kept` is the pause of a runtime without thread state."""
    memory = await conversation.recall(turn, durable=setting.durable)
    waiting = memory.pause if setting.durable else kept
    if waiting is None:
        # Truthfully: nobody knows any more what was to be done.
        raise PersistenceError("What the conversation waited for is not known here any more.", code="interrupt_lost")
    if (waiting.run_id, waiting.interrupt_id) != (decision.interrupted_run_id, decision.interrupt_id):
        raise ConfigurationError(
            "The decision is on another interrupt than the conversation's.", code="interrupt_unknown"
        )
    setting.paused(None)
    if not setting.durable:
        memory = conversation.Memory(waiting.turns, pause=waiting)
    act = _Act(waiting.scripts, waiting.per_turn, memory)
    steps = [*waiting.rest, *(act.steps if waiting.per_turn else [])]
    # The conversation has had its files; they are read again only where a step asks for them.
    stage = _Stage(turn, Attachments(turn), setting.skills, decision=decision)
    async for event in _perform(stage, act, steps, setting, waiting.calls):
        yield event


async def _perform(stage: _Stage, act: _Act, steps: Script, setting: Setting, decided: tuple[Call, ...] = ()) -> Events:
    check(steps, setting.allowed)
    turns = act.memory.turns + act.per_turn
    said = "a script" if act.per_turn else act.memory.said
    try:
        for call in decided:
            async for event in calls.make(call, stage.turn, stage.waiting, decision=stage.decision):
                yield event
        async for event in _play(steps, stage):
            yield event
    except _Paused as paused:
        made = tuple(each.call for each in stage.waiting)
        left = Pause(stage.turn.run_id, paused.interrupt_id, act.scripts, act.per_turn, made, paused.rest, turns)
        await conversation.remember(stage.turn, conversation.Memory(turns, said, left), durable=setting.durable)
        setting.paused(left)
        yield events.interrupted(paused.interrupt_id)
        return
    if act.per_turn or act.memory.pause is not None:
        await conversation.remember(stage.turn, conversation.Memory(turns, said), durable=setting.durable)
    yield events.completed()


def _pauses(steps: Script) -> bool:
    return any("interrupt" in step or "tool" in step or _pauses(_inner(step)) for step in steps)


def _inner(step: Step) -> Script:
    agent = step.get("subagent")
    return cast("Script", cast("dict[str, Any]", agent).get("script", [])) if isinstance(agent, dict) else []


def check(steps: Script, allowed: frozenset[str]) -> None:
    """Raises ConfigurationError for the first step that is unknown, not available, or guarded and not `allowed`."""
    for step in steps:
        name = _name(step)
        if name in FAULTS - allowed:
            message = f"The step `{name}` is a fault, and the operator's profile does not allow faults."
            raise ConfigurationError(message, code="faults_not_allowed")
        if name in LOOKS - allowed:
            message = f"The step `{name}` looks around its process: use a profile that runs in a sandbox, or one that allows faults."
            raise ConfigurationError(message, code="probe_not_allowed")
        if name in UNAVAILABLE:
            code, what = UNAVAILABLE[name]
            raise ConfigurationError(
                f"The step `{name}` needs {what}, which this harness does not have yet.", code=code
            )
        if name == "subagent":
            inner = _object(step, name)
            if inner.get("delegate"):
                message = "The step `subagent` asks for delegation, which this harness does not have yet."
                raise ConfigurationError(message, code="delegation_unavailable")
            check(inner.get("script", []), allowed)


def _name(step: Step) -> str:
    names = [name for name in step if name in _STEPS or name in UNAVAILABLE]
    if len(names) != 1:
        known = ", ".join(sorted({*_STEPS, *UNAVAILABLE}))
        raise ConfigurationError(f"A step must have exactly one of: {known}.", code="step_unknown")
    return names[0]


async def _play(steps: Script, stage: _Stage) -> Events:
    for place, step in enumerate(steps):
        name = _name(step)
        # Calls that follow one another are asked about together.
        if stage.waiting and (name != "tool" or len(stage.waiting) == calls.MAX_WAITING):
            yield calls.question(stage.waiting, stage.interrupt_id)
            raise _Paused(stage.interrupt_id, steps[place:])
        async for event in _STEPS[name](step, stage):
            yield event
    if stage.waiting:
        yield calls.question(stage.waiting, stage.interrupt_id)
        raise _Paused(stage.interrupt_id)


# --- what a model and its tools do ---


async def _text(step: Step, stage: _Stage) -> Events:
    message_id = str(step.get("message_id") or stage.next_id("m"))
    for piece in _pieces(step, "text"):
        yield events.text(piece, message_id=message_id, namespace=stage.namespace)


async def _reasoning(step: Step, stage: _Stage) -> Events:
    message_id = str(step.get("message_id") or stage.next_id("r"))
    for piece in _pieces(step, "reasoning"):
        yield events.reasoning(piece, message_id=message_id, namespace=stage.namespace)


async def _tool(step: Step, stage: _Stage) -> Events:
    # Unique in the conversation: there the broker knows calls by their ids.
    call = calls.asked(step, f"call-{stage.turn.number}-{stage.next_id('')}")
    async for event in calls.make(call, stage.turn, stage.waiting, namespace=stage.namespace):
        yield event


async def _tool_result(step: Step, stage: _Stage) -> Events:
    call = _object(step, "tool_result")
    call_id, name = str(call.get("id") or stage.next_id("call-")), str(call.get("name") or "tool")
    arguments = _object(call, "arguments") if "arguments" in call else None
    yield events.tool_started(call_id, name, arguments, namespace=stage.namespace)
    error = call.get("error")
    if error is None:
        yield events.tool_succeeded(call_id, call.get("result"), namespace=stage.namespace)
        return
    said = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    code, message = str(said.get("code") or "tool_failed"), str(said.get("message") or "The tool failed.")
    retryable = said.get("retryable") is True
    yield events.tool_failed(call_id, code, message, retryable=retryable, namespace=stage.namespace)


async def _subagent(step: Step, stage: _Stage) -> Events:
    agent = _object(step, "subagent")
    agent_id = str(agent.get("agent_id") or stage.next_id("agent-"))
    given = agent.get("parent_tool_call_id")
    call_id = str(given or stage.next_id("call-"))
    if not given:
        yield events.tool_started(call_id, "subagent", {"agent_id": agent_id}, namespace=stage.namespace)
    yield events.subagent_started(
        agent_id, call_id, str(agent.get("agent_name") or agent_id), namespace=stage.namespace
    )
    namespace = (*stage.namespace, agent_id)
    inner = _Stage(stage.turn, stage.files, stage.skills, namespace, stage.begun, stage.decision)
    async for event in _play(agent.get("script", []), inner):
        yield event
    yield events.subagent_completed(agent_id, call_id, namespace=stage.namespace)
    if not given:
        yield events.tool_succeeded(call_id, namespace=stage.namespace)


async def _interrupt(step: Step, stage: _Stage) -> Events:
    draft = pause.requested(step, stage.interrupt_id, stage.namespace)
    yield draft
    raise _Paused(draft.payload.interrupt_requested.interrupt_id)


async def _decision(step: Step, stage: _Stage) -> Events:
    yield events.text(pause.told(stage.decision), message_id=stage.next_id("m"), namespace=stage.namespace)


async def _file(step: Step, stage: _Stage) -> Events:
    asked = step["files"] if "files" in step else step["file"]
    yield events.text(await stage.files.told(asked), message_id=stage.next_id("m"), namespace=stage.namespace)


async def _skill(step: Step, stage: _Stage) -> Events:
    said = skills.used(step["skill"], stage.skills)
    yield events.text(said, message_id=stage.next_id("m"), namespace=stage.namespace)


async def _usage(step: Step, stage: _Stage) -> Events:
    yield _event("usage_updated", _object(step, "usage"), stage.namespace)


async def _warning(step: Step, stage: _Stage) -> Events:
    yield _event("warning", _object(step, "warning"), stage.namespace)


async def _metadata(step: Step, stage: _Stage) -> Events:
    yield events.provider_metadata("reference", metadata=_object(step, "metadata"))


async def _state(step: Step, stage: _Stage) -> Events:
    await stage.turn.thread.write_part(str(step["state"]).encode(), conversation.CODEC)
    return
    yield


async def _probe(step: Step, stage: _Stage) -> Events:
    report = await probe.report(_object(step, "probe"))
    yield events.text(report, message_id=stage.next_id("m"), namespace=stage.namespace)


async def _sleep(step: Step, stage: _Stage) -> Events:
    await asyncio.sleep(number(step["sleep"], "sleep", 0, MAX_SECONDS))
    return
    yield


# --- what goes wrong ---


async def _fail(step: Step, stage: _Stage) -> Events:
    raise _failure(_object(step, "fail"))
    yield


def _failure(said: dict[str, Any]) -> HarnessError:
    category = str(said.get("category") or "internal")
    error = ERRORS_BY_CATEGORY.get(category)
    if error is None:
        known = ", ".join(ERRORS_BY_CATEGORY)
        return ConfigurationError(f"The step `fail` has an unknown category; use one of: {known}.", code="step_invalid")
    retryable, retry_after = said.get("retryable"), said.get("retry_after")
    return error(
        str(said.get("message") or "The provider failed."),
        code=str(said.get("code") or ""),
        retryable=retryable if isinstance(retryable, bool) else None,
        retry_after=None if retry_after is None else number(retry_after, "retry_after", 0, MAX_SECONDS),
        provider_code=str(said.get("provider_code") or ""),
        diagnostic=str(said.get("diagnostic") or ""),
    )


async def _hang(step: Step, stage: _Stage) -> Events:
    # Until it is cancelled: nothing ever sets this, and the event after it is never reached.
    await asyncio.Event().wait()
    yield events.completed()


async def _spin(step: Step, stage: _Stage) -> Events:
    end = time.monotonic() + number(step["spin"], "spin", 0, MAX_SPIN_SECONDS)
    while time.monotonic() < end:
        pass  # burning CPU, and keeping the event loop from everything else, is the fault
    return
    yield


async def _raise(step: Step, stage: _Stage) -> Events:
    raise RuntimeError(str(step["raise"]))
    yield


async def _exit(step: Step, stage: _Stage) -> Events:
    os._exit(int(number(step["exit"], "exit", 0, 255)))
    yield


async def _emit(step: Step, stage: _Stage) -> Events:
    given = _object(step, "emit")
    if "payload" not in given:
        if "type" in given:
            kind = str(given["type"]).replace(".", "_")
            given = {"payload": {kind: given.get("data", {})}, "namespace": given.get("namespace", [])}
        else:
            given = {"payload": given}
    try:
        yield json_format.ParseDict(given, event_pb2.EventDraft())
    except json_format.ParseError:
        raise ConfigurationError("The step `emit` is no event of the vocabulary.", code="step_invalid") from None


# --- shared by the steps ---


def _pieces(step: Step, name: str) -> list[str]:
    chunks = step.get("chunks")
    if isinstance(chunks, list):
        return [str(chunk) for chunk in cast("list[Any]", chunks)]
    return conversation.words(str(step.get(name) or ""))


def _object(step: Step, name: str) -> dict[str, Any]:
    value = step.get(name)
    if not isinstance(value, dict):
        raise ConfigurationError(f"The step `{name}` needs an object.", code="step_invalid")
    return cast("dict[str, Any]", value)


def _event(kind: str, data: dict[str, Any], namespace: tuple[str, ...]) -> event_pb2.EventDraft:
    try:
        payload = json_format.ParseDict({kind: data}, payload_pb2.EventPayload())
    except json_format.ParseError:
        raise ConfigurationError(f"The step for {kind} has a wrong field.", code="step_invalid") from None
    return event_pb2.EventDraft(namespace=namespace, payload=payload)


_STEPS: dict[str, Callable[[Step, _Stage], Events]] = {
    "text": _text,
    "reasoning": _reasoning,
    "tool": _tool,
    "tool_result": _tool_result,
    "subagent": _subagent,
    "interrupt": _interrupt,
    "decision": _decision,
    "file": _file,
    "files": _file,
    "skill": _skill,
    "usage": _usage,
    "warning": _warning,
    "metadata": _metadata,
    "state": _state,
    "probe": _probe,
    "sleep": _sleep,
    "fail": _fail,
    "hang": _hang,
    "spin": _spin,
    "raise": _raise,
    "exit": _exit,
    "emit": _emit,
}
