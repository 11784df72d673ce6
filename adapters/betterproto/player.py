"""Plays one turn of the reference message language (reference harness): what a model and its tools would do."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from betterproto_contracts.google.protobuf import Struct
from betterproto_contracts.harness.common.v1 import ErrorCategory
from betterproto_contracts.harness.event.v1 import (
    ContentDelta,
    EventDraft,
    EventPayload,
    InterruptRequested,
    InterruptType,
    ProviderMetadata,
    ReasoningDelta,
    RunCompleted,
    RunInterrupted,
    ToolApproval,
    ToolArgumentsDelta,
    ToolCompleted,
    ToolError,
    ToolOutcome,
    ToolStarted,
    UsageUpdated,
)
from betterproto_contracts.harness.runtime.v1 import ResumeDecision

from adapters.betterproto import questions
from adapters.betterproto.errors import Failure, wrong
from adapters.betterproto.facades import ThreadState, ToolBroker, value_of
from adapters.betterproto.memory import CODEC, MAX_SAID_CHARACTERS, Memory, Pause, recall, remember
from adapters.betterproto.message import Burst, Script, Scripted, Step, name_of, number, parse, words

MAX_SECONDS = 86_400
MAX_SPIN_SECONDS = 60
# Fragments of arguments that stream.
FRAGMENT_CHARACTERS = 16
Drafts = AsyncGenerator[EventDraft, None]


@dataclass
class Turn:
    """What one turn has at hand. `keep` is told which pause the runtime has from now on."""

    run_id: str
    number: int
    message: str
    state: ThreadState
    tools: ToolBroker
    # Whether there is a committed head, and whether this conversation keeps state at all.
    has_head: bool
    durable: bool
    faults: bool
    greeting: str
    decision: ResumeDecision | None
    kept: Pause | None
    keep: Callable[[Pause | None], None]
    ids: int = 0
    # Calls that wait for a person: the broker's question, and the call as it is to be made again.
    waiting: list[tuple[ToolApproval, dict[str, Any]]] = field(
        default_factory=list[tuple[ToolApproval, dict[str, Any]]]
    )

    def next_id(self, prefix: str) -> str:
        """An id of this run that is not taken."""
        self.ids += 1
        return f"{prefix}{self.ids}"


async def play(turn: Turn) -> Drafts:
    """The drafts of the turn, exactly one terminal last. Raises Failure."""
    if turn.decision is not None:
        drafts = _resume(turn, turn.decision)
    else:
        asked = parse(turn.message)
        turn.keep(None)
        if isinstance(asked, Burst):
            drafts = _burst(asked)
        elif isinstance(asked, Scripted):
            drafts = _scripted(turn, asked)
        else:
            drafts = _plain(turn, asked)
    async for draft in drafts:
        yield draft


# --- the three kinds of turns ---


async def _plain(turn: Turn, text: str) -> Drafts:
    memory = await _recall(turn)
    said = text[:MAX_SAID_CHARACTERS]
    number_of_turn = memory.turns + 1
    before = f"before that you said: {memory.said}" if memory.turns else "nothing was said before."
    joint = " of this conversation; "
    answer = f"This is turn {number_of_turn}{joint}{before}\nNow you say: {said}"
    if turn.greeting:
        answer = f"{turn.greeting}\n{answer}"
    for word in words(answer):
        yield _text(word, "m1")
    if turn.durable:
        await remember(turn.state, Memory(number_of_turn, said))
    used = UsageUpdated(input_tokens=len(words(text)), output_tokens=len(words(answer)), final=True)
    yield _draft(usage_updated=used)
    yield _completed(turn)


async def _burst(plan: Burst) -> Drafts:
    await asyncio.sleep(plan.delay)
    begun, body = time.monotonic(), "x" * plan.size
    for index in range(plan.n):
        if plan.rate:
            # One schedule for all: a late delta delays none after it.
            await asyncio.sleep(max(0.0, begun + index / plan.rate - time.monotonic()))
        elif plan.yield0:
            await asyncio.sleep(0)
        yield _text(f"ts={time.time():.6f} {body}" if plan.stamp else body, "m1")
    yield _draft(run_completed=RunCompleted(stop_reason="end_turn"))


async def _scripted(turn: Turn, asked: Scripted) -> Drafts:
    # A single script that only speaks and calls leaves no state and needs none.
    memory = await _recall(turn) if asked.per_turn or _needs_memory(asked.scripts[0]) else None
    scripts, number_of_script = asked.scripts, memory.turns if memory and asked.per_turn else 0
    steps = scripts[number_of_script] if number_of_script < len(scripts) else []
    async for draft in _perform(turn, steps, Pause("", "", scripts=scripts, per_turn=asked.per_turn), memory):
        yield draft


async def _resume(turn: Turn, decision: ResumeDecision) -> Drafts:
    memory = await _recall(turn)
    pause = memory.pause if turn.durable else turn.kept
    if pause is None:
        message = "What the conversation waited for is not known here any more."
        raise Failure(ErrorCategory.PERSISTENCE, "interrupt_lost", message)
    answers = questions.answers(pause, decision)
    # Whatever becomes of this turn: the decision is used.
    turn.keep(None)
    # A question that was dismissed leaves its calls unmade.
    for call in () if decision.dismiss else pause.calls:
        async for draft in _call(turn, call, answers.get(call["id"])):
            yield draft
    steps = list(pause.rest)
    if pause.per_turn and memory.turns < len(pause.scripts):
        steps += pause.scripts[memory.turns]
    async for draft in _perform(turn, steps, pause, memory):
        yield draft


async def _perform(turn: Turn, steps: Script, origin: Pause, memory: Memory | None) -> Drafts:
    """Plays the steps, then completes, or pauses at the first question. Nothing is played if any step is refused."""
    names = [name_of(step, faults=turn.faults) for step in steps]
    counted = memory and replace(memory, turns=memory.turns + origin.per_turn, pause=None)
    for index, (name, step) in enumerate(zip(names, steps, strict=True)):
        if turn.waiting and name != "tool":
            async for draft in _pause(turn, _approval(turn), origin, counted, steps[index:]):
                yield draft
            return
        if name == "interrupt":
            question = questions.asked(step, f"interrupt-{turn.number}")
            async for draft in _pause(turn, question, origin, counted, []):
                yield draft
            return
        async for draft in _STEPS[name](step, turn):
            yield draft
    if turn.waiting:
        async for draft in _pause(turn, _approval(turn), origin, counted, []):
            yield draft
        return
    if turn.durable and counted is not None:
        await remember(turn.state, counted)
    yield _completed(turn)


async def _pause(
    turn: Turn, question: InterruptRequested, origin: Pause, memory: Memory | None, rest: Script
) -> Drafts:
    pause = replace(
        origin,
        run_id=turn.run_id,
        interrupt_id=question.interrupt_id,
        allowed={call.tool_call_id: [int(kind) for kind in call.allowed] for call in question.tool_approvals},
        calls=[call for _, call in turn.waiting],
        rest=rest,
    )
    if turn.durable:
        await remember(turn.state, replace(memory or await _recall(turn), pause=pause))
    turn.keep(pause)
    yield _draft(interrupt_requested=question)
    ended = _draft(run_interrupted=RunInterrupted(interrupt_id=question.interrupt_id, reason="A person is asked."))
    ended.pending_head = turn.state.pending_head()
    yield ended


def _approval(turn: Turn) -> InterruptRequested:
    return InterruptRequested(
        interrupt_id=f"interrupt-{turn.number}",
        revision=1,
        interrupt_type=InterruptType.TOOL_APPROVAL,
        prompt="Shall these calls be made?",
        tool_approvals=[approval for approval, _ in turn.waiting],
    )


async def _recall(turn: Turn) -> Memory:
    return await recall(turn.state) if turn.durable and turn.has_head else Memory()


def _needs_memory(steps: Script) -> bool:
    return any(name in step for step in steps for name in ("interrupt", "state"))


# --- the steps ---


async def _say(step: Step, turn: Turn) -> Drafts:
    message_id = str(step.get("message_id") or turn.next_id("m"))
    for piece in _pieces(step, "text"):
        yield _text(piece, message_id)


async def _reason(step: Step, turn: Turn) -> Drafts:
    message_id = str(step.get("message_id") or turn.next_id("r"))
    for piece in _pieces(step, "reasoning"):
        yield _draft(reasoning_delta=ReasoningDelta(message_id=message_id, text=piece))


async def _tool(step: Step, turn: Turn) -> Drafts:
    call = _object(step, "tool")
    asked = {
        # Unique in the epoch: the turn is part of an id that nobody gave.
        "id": str(call.get("id") or turn.next_id(f"call-{turn.number}-")),
        "tool": turn.tools.tool_id(str(call.get("name") or "")),
        "arguments": _object(call, "arguments") if "arguments" in call else {},
        "stream": call.get("stream_arguments") is True,
    }
    async for draft in _call(turn, asked):
        yield draft


async def _call(turn: Turn, call: dict[str, Any], edited: dict[str, Any] | None = None) -> Drafts:
    # The call stays the one the broker knows: a person's arguments are the broker's to find, validate and use, and are shown.
    shown = call["arguments"] if edited is None else edited
    answer = await turn.tools.invoke(call["id"], call["tool"], call["arguments"])
    if isinstance(answer, ToolApproval):
        # A call that waits for approval has not started.
        turn.waiting.append((answer, call))
        return
    started = ToolStarted(tool_call_id=call["id"], tool_name=call["tool"])
    if not call["stream"]:
        started.arguments = Struct.from_dict(shown)
    yield _draft(tool_started=started)
    if call["stream"]:
        text = json.dumps(shown)
        for start in range(0, len(text), FRAGMENT_CHARACTERS):
            delta = ToolArgumentsDelta(tool_call_id=call["id"], delta=text[start : start + FRAGMENT_CHARACTERS])
            yield _draft(tool_arguments_delta=delta)
    answer.tool_call_id = call["id"]
    yield _draft(tool_completed=answer)


async def _provider_tool(step: Step, turn: Turn) -> Drafts:
    call = _object(step, "tool_result")
    call_id = str(call.get("id") or turn.next_id("call-"))
    started = ToolStarted(tool_call_id=call_id, tool_name=str(call.get("name") or "tool"))
    if "arguments" in call:
        started.arguments = Struct.from_dict(_object(call, "arguments"))
    yield _draft(tool_started=started)
    error = call.get("error")
    completed = ToolCompleted(tool_call_id=call_id, outcome=ToolOutcome.SUCCESS, result=value_of(call.get("result")))
    if error is not None:
        said = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
        completed = ToolCompleted(
            tool_call_id=call_id,
            outcome=ToolOutcome.ERROR,
            error=ToolError(
                code=str(said.get("code") or "tool_failed"),
                message=str(said.get("message") or "The tool failed."),
                retryable=said.get("retryable") is True,
            ),
        )
    yield _draft(tool_completed=completed)


async def _tell_decision(step: Step, turn: Turn) -> Drafts:
    yield _text(questions.told(turn.decision), turn.next_id("m"))


async def _usage(step: Step, turn: Turn) -> Drafts:
    yield _given({"usage_updated": _object(step, "usage")})


async def _warn(step: Step, turn: Turn) -> Drafts:
    yield _given({"warning": _object(step, "warning")})


async def _metadata(step: Step, turn: Turn) -> Drafts:
    metadata = Struct.from_dict(_object(step, "metadata"))
    yield _draft(provider_metadata=ProviderMetadata(provider="reference_betterproto", metadata=metadata))


async def _state(step: Step, turn: Turn) -> Drafts:
    if not turn.durable:
        raise wrong("step_invalid", "The step `state` needs a conversation that keeps state.")
    # The memory, which the head ends with, is written at the end of the turn.
    await turn.state.write(str(step["state"]).encode(), CODEC, turn.next_id("state-"))
    return
    yield


async def _sleep(step: Step, turn: Turn) -> Drafts:
    await asyncio.sleep(number(step, "sleep", MAX_SECONDS))
    return
    yield


async def _fail(step: Step, turn: Turn) -> Drafts:
    said = _object(step, "fail")
    name = str(said.get("category") or "internal").upper()
    categories = {category.name: category for category in ErrorCategory if category is not ErrorCategory.UNSPECIFIED}
    if name not in categories:
        raise wrong("step_invalid", f"The step `fail` needs a category: {', '.join(categories).lower()}.")
    retryable, retry_after = said.get("retryable"), said.get("retry_after")
    raise Failure(
        categories[name],
        str(said.get("code") or f"provider_{name.lower()}"),
        str(said.get("message") or "The provider failed."),
        retryable=retryable if isinstance(retryable, bool) else None,
        retry_after=None if retry_after is None else round(number(said, "retry_after", MAX_SECONDS)),
        provider_code=str(said.get("provider_code") or ""),
    )
    yield


async def _emit(step: Step, turn: Turn) -> Drafts:
    given = _object(step, "emit")
    if "type" in given:
        given = {"payload": {str(given["type"]).replace(".", "_"): given.get("data", {})}}
    yield _given(given.get("payload", given), namespace=given.get("namespace"))


async def _raise(step: Step, turn: Turn) -> Drafts:
    raise RuntimeError(str(step["raise"]))
    yield


async def _exit(step: Step, turn: Turn) -> Drafts:
    os._exit(int(number(step, "exit", 255, whole=True)))
    yield


async def _hang(step: Step, turn: Turn) -> Drafts:
    await asyncio.Event().wait()
    return
    yield


async def _spin(step: Step, turn: Turn) -> Drafts:
    end = time.monotonic() + number(step, "spin", MAX_SPIN_SECONDS)
    while time.monotonic() < end:
        pass  # keeping the loop from everything else is the fault
    return
    yield


_STEPS: dict[str, Callable[[Step, Turn], Drafts]] = {
    "text": _say,
    "reasoning": _reason,
    "tool": _tool,
    "tool_result": _provider_tool,
    "decision": _tell_decision,
    "usage": _usage,
    "warning": _warn,
    "metadata": _metadata,
    "state": _state,
    "sleep": _sleep,
    "fail": _fail,
    "emit": _emit,
    "raise": _raise,
    "exit": _exit,
    "hang": _hang,
    "spin": _spin,
}


def _draft(**payload: Any) -> EventDraft:
    return EventDraft(payload=EventPayload(**payload))


def _text(text: str, message_id: str) -> EventDraft:
    return _draft(content_delta=ContentDelta(message_id=message_id, text=text))


def _completed(turn: Turn) -> EventDraft:
    draft = _draft(run_completed=RunCompleted(stop_reason="end_turn"))
    draft.pending_head = turn.state.pending_head()
    return draft


def _given(payload: object, namespace: object = None) -> EventDraft:
    try:
        return EventDraft.from_dict({"payload": payload, "namespace": namespace or []})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise wrong("step_invalid", "A step's event is none of the vocabulary.") from None


def _object(step: Step, name: str) -> dict[str, Any]:
    value = step.get(name)
    if not isinstance(value, dict):
        raise wrong("step_invalid", f"The step's `{name}` must be an object.")
    return cast("dict[str, Any]", value)


def _pieces(step: Step, name: str) -> list[str]:
    chunks = step.get("chunks")
    if isinstance(chunks, list):
        return [str(chunk) for chunk in cast("list[Any]", chunks)]
    return words(str(step.get(name) or ""))
