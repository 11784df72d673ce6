"""Those who use the mesh: starts of every policy, raced and repeated through other gateways, cancels, clears, edits."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.chaos.mesh import ChaosMesh
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.chaos.subscribers import RETRYABLE, Subscribers

ANSWER_SECONDS: Final = 45.0
"""Longest a client waits; the mesh's own bounds are shorter, also for a process that was stopped meanwhile."""
ATTEMPTS: Final = 4


@dataclass(slots=True)
class Clients:
    """All clients of one campaign. They rest while `may_work` is not set."""

    mesh: ChaosMesh
    recorded: Recorded
    subscribers: Subscribers
    client: httpx.AsyncClient
    agents: list[str]
    talks: list[tuple[str, str]]
    ttl: float
    may_work: asyncio.Event = field(default_factory=asyncio.Event)
    _asking: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Conversations in which a turn asked a person lately."""
    _busy: int = 0
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    runs: list[str] = field(default_factory=list[str])

    async def work(self, dice: random.Random) -> None:
        """One client, until it is cancelled."""
        doings: tuple[tuple[Callable[[random.Random, str, str], Awaitable[object]], int], ...] = (
            (self._start, 46), (self._race, 6), (self._cancel, 8), (self._cancel_active, 4), (self._clear, 4), (self._edit, 3),
            (self._all_at_once, 3), (self._resume, 8),
        )  # fmt: skip
        while True:
            await self.may_work.wait()
            agent, talk = dice.choice(self.talks)
            doing = dice.choices([each for each, _ in doings], [weight for _, weight in doings])[0]
            self._busy += 1
            try:
                await doing(dice, agent, talk)
            finally:
                self._busy -= 1
                self._answered.set()
            await asyncio.sleep(dice.expovariate(2.5))

    async def rest(self, seconds: float) -> None:
        """Nobody begins anything new; returns once everybody has their answer."""
        self.may_work.clear()
        bound = time.monotonic() + seconds
        while self._busy:
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), bound - time.monotonic())
            except TimeoutError:  # what was not answered by then, its client has to live without
                return

    async def _start(self, dice: random.Random, agent: str, talk: str, key: str = "", message: str = "") -> str | None:
        body: dict[str, Any] = {
            "agent_id": agent,
            "conversation_id": talk,
            "message": message or _message(dice, self.ttl),
            "on_conflict": "enqueue" if key else dice.choice(("reject", "reject", "enqueue", "interrupt")),
            "client_request_id": key or f"key-{dice.getrandbits(64):x}",
        }
        if "interrupt" in body["message"]:
            self._asking = [*self._asking[-5:], (agent, talk)]
        run_id = None
        for _ in range(dice.choice((1, 1, 1, 2))):  # repeated after it was answered, through whichever gateway
            answer = await self._until_answered(dice, "POST", "/api/v1/runs", body)
            if answer is None or answer.status_code != 202:
                continue
            run_id = str(answer.json()["data"]["run_id"])
            self.recorded.run_of((talk, body["client_request_id"]), run_id)
            self.runs.append(run_id)
            self.subscribers.watch(run_id, random.Random(dice.random()))
        return run_id

    async def _race(self, dice: random.Random, agent: str, talk: str) -> None:
        key, message = f"raced-{dice.getrandbits(64):x}", _message(dice, self.ttl)
        many = dice.choice((3, 6, 12))
        await asyncio.gather(
            *(self._start(random.Random(dice.random()), agent, talk, key, message) for _ in range(many))
        )

    async def _cancel(self, dice: random.Random, agent: str, talk: str) -> None:
        if not self.runs:
            return
        run_id = dice.choice(self.runs[-16:])
        answer = await self._call(dice, "DELETE", f"/api/v1/runs/{run_id}", None)
        if answer is not None and answer.status_code == 200:
            # I12: whatever else is going on, the terminal is in the log by now.
            await self._cancelled(run_id, answer.json()["data"])

    async def _cancel_active(self, dice: random.Random, agent: str, talk: str) -> None:
        body = {"agent_id": agent, "conversation_id": talk}
        answer = await self._call(dice, "POST", "/api/v1/runs/cancel-active", body)
        if answer is not None and answer.status_code == 200 and answer.json()["data"]["run_id"]:
            await self._cancelled(answer.json()["data"]["run_id"], None)

    async def _cancelled(self, run_id: str, answer: dict[str, Any] | None) -> None:
        await asyncio.to_thread(self.recorded.cancelled, run_id, answer, StoredMesh(self.mesh.stores()))

    async def _clear(self, dice: random.Random, agent: str, talk: str) -> None:
        body = {"agent_id": agent, "conversation_id": talk}
        answer = await self._call(dice, "POST", "/api/v1/sessions/clear", body)
        if answer is not None and answer.status_code == 200:
            self.recorded.cleared(talk, answer.json()["data"])

    async def _resume(self, dice: random.Random, agent: str, talk: str) -> None:
        """Whoever looks after a conversation that waits for a person decides, and so do others, alike or not, at the same time."""
        if self._asking and dice.random() < 0.8:
            agent, talk = dice.choice(self._asking)
        path = f"/api/v1/conversations/{talk}/interrupt-state?agent_id={agent}"
        answer = await self._call(dice, "GET", path, None)
        if answer is None or answer.status_code != 200 or answer.json()["data"] is None:
            return
        shown = answer.json()["data"]
        await asyncio.to_thread(self.recorded.shown, shown["run_id"], StoredMesh(self.mesh.stores()))
        decisions = [dice.choice(("Rome", "Oslo", ""))] * dice.choice((1, 2, 4))
        if dice.random() < 0.4:
            decisions.append("Bern")
        await asyncio.gather(*(self._decide(random.Random(dice.random()), talk, shown, each) for each in decisions))

    async def answer_pending(self) -> None:
        """Somebody decides wherever a person is waited for: those who wait in line there wait for that."""
        for binding in StoredMesh(self.mesh.stores()).bindings():
            pending = binding.get("interrupt")
            if pending and not pending["consumed_by"] and not binding["active"]:
                shown = {name: pending[name] for name in ("run_id", "interrupt_id", "revision")}
                await self._decide(random.Random(pending["run_id"]), binding["conversation_id"], shown, "Rome")

    async def _decide(self, dice: random.Random, talk: str, shown: dict[str, Any], city: str) -> None:
        said: dict[str, Any] = {"form_values": {"city": city}} if city else {"dismiss": True}
        body = {"interrupt_id": shown["interrupt_id"], "revision": shown["revision"], **said}
        answer = await self._until_answered(dice, "POST", f"/api/v1/runs/{shown['run_id']}/resume", body)
        if answer is not None and answer.status_code == 202:
            run_id = str(answer.json()["data"]["run_id"])
            asked = f"{shown['run_id']} {shown['interrupt_id']} {shown['revision']}"
            self.recorded.resumed(asked, city or "dismissed", run_id)
            self.runs.append(run_id)
            self.subscribers.watch(run_id, random.Random(dice.random()))

    async def _edit(self, dice: random.Random, agent: str, talk: str) -> None:
        read = await self._call(dice, "GET", f"/api/v1/agents/{agent}", None)
        if read is None or read.status_code != 200:
            return
        data = read.json()["data"]
        blueprint = data["version"]["blueprint"]
        blueprint["prompt"]["system"] = f"Be helpful, in way {dice.getrandbits(32)}."
        body: dict[str, Any] = {"blueprint": blueprint}
        if dice.random() < 0.5:
            body["expected_revision"] = data["record"]["revision"]
        answer = await self._call(dice, "PUT", f"/api/v1/agents/{agent}", body)
        if answer is not None and answer.status_code == 200:
            version = answer.json()["data"]["version"]
            self.recorded.saved(agent, int(version["version"]), version["blueprint"]["prompt"]["system"])

    async def _all_at_once(self, dice: random.Random, agent: str, talk: str) -> None:
        """Clear, start and cancel of one conversation in the same moment."""
        sides = (self._clear, self._start, self._cancel_active, self._start, self._clear)
        await asyncio.gather(*(side(random.Random(dice.random()), agent, talk) for side in sides))

    async def goes_on(self, agent: str, talk: str, dice: random.Random, seconds: float) -> None:
        """A conversation takes another turn and completes it, bounded: nothing of it is stuck."""
        bound, said = time.monotonic() + seconds, "nothing"
        while time.monotonic() < bound:
            body = {"agent_id": agent, "conversation_id": talk, "message": "still there?", "on_conflict": "interrupt"}
            answer = await self._call(dice, "POST", "/api/v1/runs", body)
            said = "nobody answered" if answer is None else f"{answer.status_code} {answer.text[:300]}"
            if answer is not None and answer.status_code == 202:
                run_id = str(answer.json()["data"]["run_id"])
                said = await self._status_at_its_end(dice, run_id, bound)
                if said == "completed":
                    return
            await asyncio.sleep(0.2)
        self.recorded.complain(f"I9: {talk} does not go on within {seconds:g} s: {said}")

    async def _status_at_its_end(self, dice: random.Random, run_id: str, bound: float) -> str:
        after, status = 0, ""
        while time.monotonic() < bound:
            path = f"/api/v1/runs/{run_id}/events?after={after}&wait=5"
            answer = await self._call(dice, "GET", path, None)
            if answer is not None and answer.status_code == 200:
                data = answer.json()["data"]
                after, status = data["next_cursor"], str(data["run"]["status"])
                if status not in ("queued", "running"):
                    return status
            else:
                await asyncio.sleep(0.2)
        return status

    async def _until_answered(self, dice: random.Random, method: str, path: str, body: Any) -> httpx.Response | None:
        """As a good client does it: the same request again, through another gateway, when nobody answered or was able to."""
        answer = None
        for attempt in range(ATTEMPTS):
            answer = await self._call(dice, method, path, body)
            if answer is not None and answer.status_code not in (503, 504):
                return answer
            if attempt:
                self.recorded.retries += 1
            await asyncio.sleep(0.2 + 0.4 * dice.random())
        return answer

    async def _call(self, dice: random.Random, method: str, path: str, body: Any) -> httpx.Response | None:
        """The answer; None when the gateway went away with it. An answer that no client could do anything with is a finding."""
        began = time.monotonic()
        try:
            answer = await self.client.request(method, dice.choice(self.mesh.urls) + path, json=body)
        except httpx.TransportError as error:
            # A stopped gateway answers nobody; one that runs has to answer within its own bounds.
            if time.monotonic() - began > ANSWER_SECONDS + 2 * self.ttl:
                self.recorded.complain(f"I35: {method} {path}: no answer for {time.monotonic() - began:.0f} s")
            self.recorded.answers[f"{method} {type(error).__name__}"] += 1
            return None
        code = ""
        if answer.status_code >= 400:
            try:
                code = f" {answer.json()['code']}"
            except (ValueError, KeyError):
                self.recorded.complain(
                    f"no answer of ours: {method} {path}: {answer.status_code} {answer.text[:400]!r}"
                )
            if answer.status_code not in RETRYABLE:
                self.recorded.complain(f"{method} {path}: {answer.status_code} {answer.text[:400]}")
        self.recorded.answers[f"{method} {answer.status_code}{code}"] += 1
        return answer


def _message(dice: random.Random, ttl: float) -> str:
    """Turns of every shape; the long ones outlive a lease."""
    said = f"hello {dice.getrandbits(20)}"
    shapes: tuple[tuple[Any, int], ...] = (
        (said, 22),
        ({"n": 3}, 6),
        ({"n": 12, "rate": 12}, 10),
        ({"n": 60}, 4),
        ({"n": round(12 * ttl), "rate": 8}, 14),
        ({"n": 5, "delay": 0.5}, 6),
        (_with_tool(0.3 + 0.4 * dice.random()), 12),
        (_with_tool(1.4 * ttl), 8),
        (_with_state(0.2), 10),
        (_ASKING, 12),
        ({"script": [{"fail": {"category": "rate_limit", "message": "busy", "retryable": True}}]}, 3),
    )
    asked = dice.choices([shape for shape, _ in shapes], [weight for _, weight in shapes])[0]
    return asked if isinstance(asked, str) else json.dumps(asked)


def _with_tool(seconds: float) -> dict[str, Any]:
    """A call stays open for a while, with a subagent in it."""
    inner = [{"text": "looking"}, {"sleep": seconds / 2}, {"text": "found"}, {"sleep": seconds / 2}]
    return {
        "script": [
            {"text": "one two"},
            {"subagent": {"agent_id": "scout", "script": inner}},
            {"tool_result": {"name": "search", "arguments": {"q": "x"}, "result": {"hits": 1}}},
            {"text": "three"},
            _USAGE,
        ]
    }


def _with_state(seconds: float) -> dict[str, Any]:
    return {
        "script": [
            {"text": "one"},
            {"state": '{"turns": 1, "said": "a script"}'},
            {"sleep": seconds},
            {"text": "two three"},
            _USAGE,
        ]
    }


_USAGE: Final = {"usage": {"input_tokens": 3, "output_tokens": 5, "final": True}}
_ASKING: Final = {
    "script": [
        {"text": "one two"},
        {"sleep": 0.2},
        _USAGE,
        {"interrupt": {"form": [{"name": "city", "label": "City"}], "prompt": "Where to?"}},
    ]
}
