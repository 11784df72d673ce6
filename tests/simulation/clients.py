"""The clients of the simulation: each does a few things with one conversation, patiently or not, and watches what it started."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

import orjson

from harness.run.v1 import run_service_pb2 as api
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.simulation.adapter import ASKING, CALLING
from tests.simulation.network import SimulatedPeer
from tests.simulation.processes import RUNS

SERVICE: Final = "/harness.run.v1.RunService/"
POLICIES: Final = {
    "reject": binding_pb2.CONFLICT_POLICY_REJECT,
    "enqueue": binding_pb2.CONFLICT_POLICY_ENQUEUE,
    "interrupt": binding_pb2.CONFLICT_POLICY_INTERRUPT,
}
USUAL: Final = {
    "start_reject": 3.0,
    "start_enqueue": 4.0,
    "start_interrupt": 1.5,
    "repeat": 1.5,
    "cancel": 1.5,
    "cancel_active": 0.7,
    "clear": 0.8,
    "wait": 1.0,
    "resume": 2.0,
    "resume_again": 1.0,
    "resume_misnamed": 0.0,
}
"""How often a client does what."""
SCRIPTS: Final = {
    "quick": 4.0,
    "slow": 3.0,
    "hang": 1.0,
    "fail": 0.7,
    "tool": 1.0,
    "part": 1.0,
    "session": 1.5,
    "silent": 0.7,
    "ask": 2.0,
    "big": 0.0,
}
WITH_TOOLS: Final = {"call": 4.0, "approve": 4.0}
"""What runs of an agent with tools do besides."""
MAYBE: Final = frozenset(
    {Reason.UNAVAILABLE, Reason.STORE_UNAVAILABLE, Reason.DEADLINE_EXCEEDED, Reason.CANCELLED, Reason.INTERNAL}
)
"""Answers after which nobody knows whether something happened."""


class Conversation:
    """One conversation: whose, with which agent, and what was asked in it so far."""

    def __init__(self, world: Any, number: int, agent: str) -> None:
        self.world = world
        self.subject = f"user-{number}"
        self.agent = agent
        self.name = f"talk-{number}"
        self.requests: list[api.StartRunRequest] = []
        self.runs: list[str] = []
        self.answers: dict[str, str] = {}
        self.decisions: list[api.ResumeRunRequest] = []
        self.clears = 0
        self._number = 0

    @property
    def key(self) -> str:
        """As bindings name it."""
        owner = self.world.identity.owner_digest(self.subject)
        return f"{owner}/{self.agent}/{self.name}"

    def new_request(self, policy: str, script: dict[str, Any]) -> api.StartRunRequest:
        """A start nobody has asked for yet."""
        self._number += 1
        request = api.StartRunRequest(
            agent_id=self.agent,
            conversation_id=self.name,
            message=orjson.dumps(script).decode(),
            client_request_id=f"{self.name}-{self._number}",
            on_conflict=POLICIES[policy],
        )
        self.requests.append(request)
        return request


class Client:
    """One client. `run` does everything it does."""

    def __init__(self, conversation: Conversation, name: str) -> None:
        self._conversation = conversation
        self._world = conversation.world
        self._random = conversation.world.random
        self._name = name
        self._watchers: list[asyncio.Task[Any]] = []

    async def run(self, operations: int, seconds: float) -> None:
        """So many operations within about so much time, then wait for what it watches."""
        weights = USUAL | self._world.scenario.weights
        names, shares = list(weights), list(weights.values())
        for _ in range(operations):
            await asyncio.sleep(self._random.random() ** 2 * 2 * seconds / operations)
            (operation,) = self._random.choices(names, shares)
            await self._do(operation)
        for watcher in self._watchers:
            await watcher

    async def _do(self, operation: str) -> None:
        conversation, random = self._conversation, self._random
        if operation.startswith("start_"):
            await self._start(conversation.new_request(operation.removeprefix("start_"), self._script()))
        elif operation == "repeat" and conversation.requests:
            await self._start(random.choice(conversation.requests))
        elif operation == "cancel" and conversation.runs:
            run_id = random.choice(conversation.runs[-3:])
            answer = await self._call("CancelRun", api.CancelRunRequest(run_id=run_id))
            if answer is not None:
                self._world.check("cancelled", run_id)
        elif operation == "cancel_active":
            request = api.CancelActiveRunRequest(agent_id=conversation.agent, conversation_id=conversation.name)
            answer = await self._call("CancelActiveRun", request)
            if answer is not None and answer.cancelled:
                self._world.check("cancelled", answer.run_id)
        elif operation == "clear":
            await self._clear()
        elif operation == "resume":
            await self._resume()
        elif operation == "resume_misnamed" and conversation.requests:
            # A client's mistake: the id of another request.
            await self._resume(random.choice(conversation.requests).client_request_id)
        elif operation == "resume_again" and conversation.decisions:
            await self._decide(random.choice(conversation.decisions))
        elif operation == "wait":
            await asyncio.sleep(random.random() * 2)

    async def _clear(self) -> None:
        conversation = self._conversation
        request = api.ClearSessionRequest(agent_id=conversation.agent, conversation_id=conversation.name)
        for _ in range(3):
            conversation.clears += 1
            answer = await self._call("ClearSession", request)
            if answer is not None:
                if answer.cleared:
                    self._world.check("cleared", conversation.key, answer.next_epoch)
                return

    async def _resume(self, client_request_id: str = "") -> None:
        conversation = self._conversation
        state = await self._call(
            "GetInterruptState",
            api.GetInterruptStateRequest(agent_id=conversation.agent, conversation_id=conversation.name),
        )
        if state is None or not state.HasField("interrupt"):
            return
        interrupt = state.interrupt
        self._world.check("interrupt_shown", interrupt.run_id)
        request = api.ResumeRunRequest(
            run_id=interrupt.run_id,
            interrupt_id=interrupt.interrupt_id,
            revision=interrupt.revision,
            client_request_id=client_request_id,
        )
        decision = "" if interrupt.tool_approvals else self._random.choice(("yes", "no", ""))
        if interrupt.tool_approvals:
            self._decide_on(interrupt.tool_approvals[0].tool_call_id, request)
        elif decision:
            request.form_values.update({"answer": decision})
        else:
            request.dismiss = True
        conversation.decisions.append(request)
        await self._decide(request)

    def _decide_on(self, call_id: str, request: api.ResumeRunRequest) -> None:
        """Decide on a tool call that waits."""
        decided = self._random.choice(("approve", "approve", "edit", "reject", "dismiss"))
        if decided == "dismiss":
            request.dismiss = True
            return
        decision = request.tool_decisions.decisions.add(tool_call_id=call_id)
        if decided == "approve":
            decision.approve = True
        elif decided == "edit":
            decision.edit.update({"n": 7})
        else:
            decision.reject = "No."
        if decided != "reject":
            self._world.check("let_pass", call_id, {"n": 7} if decided == "edit" else None)

    async def _decide(self, request: api.ResumeRunRequest) -> None:
        for attempt in range(self._random.choice((1, 3))):
            if attempt:
                await asyncio.sleep(self._random.random() * 0.5)
            answer, refusal = await self._ask("ResumeRun", request)
            if answer is not None:
                decision = _answer_in(request)
                question = (request.run_id, request.interrupt_id, request.revision)
                self._world.check("resumed", answer.run.run_id, question, decision)
                self._conversation.runs.append(answer.run.run_id)
                if self._random.random() < 0.6:
                    self._watch(answer.run.run_id)
                return
            if refusal.reason not in MAYBE:
                return

    async def _start(self, request: api.StartRunRequest) -> None:
        conversation, random = self._conversation, self._random
        known = conversation.answers.get(request.client_request_id)
        for attempt in range(random.choice((1, 2, 4))):
            if attempt:
                await asyncio.sleep(random.random() * 0.5)
            ends_before = self._world.checker.ends
            answer, refusal = await self._ask("StartRun", request)
            if answer is not None:
                run_id = answer.run.run_id
                self._world.check("started", run_id, request.client_request_id, conversation.answers)
                if run_id not in conversation.runs:
                    conversation.runs.append(run_id)
                if random.random() < 0.6:
                    self._watch(run_id)
                return
            if refusal.reason is Reason.HARNESS_SESSION_CONFLICT:
                conflict_with = refusal.metadata.get("run_id", "")
                self._world.check("conflicted", conflict_with, request.client_request_id, known, ends_before)
                return
            if refusal.reason not in MAYBE:
                return

    async def _call(self, method: str, request: Any) -> Any:
        return (await self._ask(method, request))[0]

    async def _ask(self, method: str, request: Any) -> tuple[Any, Any]:
        """The answer, or the refusal."""
        world = self._world
        peer = SimulatedPeer(world.network, self._replica())
        shown = request.client_request_id if method == "StartRun" else getattr(request, "run_id", "")
        policy = binding_pb2.ConflictPolicy.Name(request.on_conflict)[16:] if method == "StartRun" else ""
        world.told(self._name, f"{method}?", of=shown, **({"policy": policy} if policy else {}))
        try:
            answer = await peer.call(SERVICE + method, request, subject=self._conversation.subject, timeout=35.0)
        except HarnessError as error:
            world.told(
                self._name, f"{method}!", of=shown, refused=error.reason.value, about=error.metadata.get("run_id", "")
            )
            return None, error
        world.told(self._name, f"{method}.", of=shown, answer=_summary(answer))
        return answer, None

    def _replica(self) -> str:
        random = self._random
        return RUNS if random.random() < 0.5 else f"runs-{random.randrange(self._world.scenario.runs) + 1}"

    def _watch(self, run_id: str) -> None:
        self._watchers.append(asyncio.get_running_loop().create_task(self._follow(run_id)))

    async def _follow(self, run_id: str) -> None:
        world, random, cursor = self._world, self._random, 0
        while True:
            peer = SimulatedPeer(world.network, self._replica())
            request = api.WatchRunRequest(run_id=run_id, after=cursor)
            leave_after = random.randrange(1, 6) if random.random() < 0.3 and not world.weather.over else 1000
            try:
                async with aclosing(
                    peer.stream(SERVICE + "WatchRun", request, subject=self._conversation.subject, timeout=None)
                ) as messages:
                    async for packed in messages:
                        cursor = world.check("watched", run_id, cursor, packed)
                        leave_after -= 1
                        if not leave_after:
                            break
                    else:
                        world.check("watch_ended", run_id, cursor)
                        return
            except HarnessError:
                world.history.count("watch_broken")
            world.history.count("watch_again")
            await asyncio.sleep(0.05 + random.random() * (0.5 if world.weather.over else 1.0))

    def _script(self) -> dict[str, Any]:
        random = self._random
        weights = SCRIPTS | (WITH_TOOLS if self._conversation.agent == "tools" else {}) | self._world.scenario.scripts
        (kind,) = random.choices(list(weights), list(weights.values()))
        script: dict[str, Any] = {"events": random.randrange(1, 5), "pause": random.choice((0.0, 0.0, 0.05, 0.2))}
        if kind == "slow":
            script["pause"] = random.choice((0.3, 0.6, 1.0))
        elif kind == "hang":
            script["end"] = "hang"
        elif kind == "silent":
            script |= {"events": 0, "end": "hang"}
        elif kind in ("fail", "ask"):
            script["end"] = kind
        elif kind in ("call", "approve"):
            script["calls"] = CALLING if kind == "call" else ASKING
        elif kind in ("tool", "part", "session", "big"):
            script[kind] = True
        return script


def _answer_in(request: api.ResumeRunRequest) -> str:
    """What was decided, to be compared."""
    if request.HasField("form_values"):
        return str(request.form_values["answer"])
    return str(request.tool_decisions) if request.HasField("tool_decisions") else "dismiss"


def _summary(answer: Any) -> str:
    if hasattr(answer, "run"):
        return f"{answer.run.run_id[-6:]} {api.DESCRIPTOR.name and answer.run.status}"
    return " ".join(str(answer).split())
