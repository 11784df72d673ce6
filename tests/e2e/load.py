"""A load of turns over several gateways, each followed to its end, by clients that do what a good client does: name every start by an id of their own, ask
the other gateway when one cannot be reached, and resume a stream with its last event's id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.turns import TERMINALS, Frame, assert_whole, conversation, frame_of, start_body, watch
from tests.support.mesh import PATIENCE_SECONDS, TOKEN, RunningMesh, poll_until

SUBJECT = "someone"
REPLICATED = ("runs", "sessions", "catalog", "gateway")
REPLICAS = [name for service in REPLICATED for name in (service, f"{service}-2")]
TWO_OF_EACH = ("--replicas", ",".join(f"{service}=2" for service in REPLICATED))
PAUSE_SECONDS = 0.05


@dataclass
class Turn:
    """One turn, and what its watcher was sent, over all its streams."""

    run_id: str
    conversation_id: str
    frames: list[Frame] = field(default_factory=list[Frame])
    streams: int = 0

    @property
    def ended(self) -> bool:
        """Whether the terminal was seen."""
        return bool(self.frames) and self.frames[-1].event_type in TERMINALS


class Load:
    """Conversations side by side, one turn after the other, until `stop`. Every lane has one of the messages."""

    def __init__(self, urls: Sequence[str], agent_id: str, *messages: dict[str, Any]) -> None:
        self._agent_id = agent_id
        self._messages = messages
        self._clients = [
            httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": SUBJECT},
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            )
            for url in urls
        ]
        self._stopping = False
        self.turns: list[Turn] = []
        self.refusals: list[str] = []
        """Every answer that was no success."""
        self.moved = 0
        """How often the other gateway was asked, because one could not be reached, or a stream ended early."""
        self.broken = 0
        """How many streams began and ended with their connection broken."""

    async def run(self, lanes: int) -> None:
        """Returns when every lane has ended its last turn."""
        try:
            async with asyncio.TaskGroup() as group:
                for lane in range(lanes):
                    group.create_task(self._lane(lane))
        finally:
            for client in self._clients:
                await client.aclose()

    def stop(self) -> None:
        """No new turns; those under way are followed to their ends."""
        self._stopping = True

    async def _lane(self, lane: int) -> None:
        talk, number = conversation(), lane
        while not self._stopping:
            number += 1
            message = self._messages[lane % len(self._messages)]
            body = start_body(self._agent_id, message, talk, client_request_id=uuid.uuid4().hex)
            started = await self._ask("POST", "/api/v1/runs", number, json=body)
            turn = Turn(started["run_id"], talk)
            self.turns.append(turn)
            await self._follow(turn, number + 1)
            read = await self._ask("GET", f"/api/v1/runs/{turn.run_id}", number)
            assert read["run_id"] == turn.run_id

    async def _ask(self, method: str, path: str, which: int, **more: Any) -> Any:
        """The answer's data, from the first gateway that can be reached."""
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                asked_at = clock()
                try:
                    answer = await self._client(which).request(method, path, **more)
                except httpx.TransportError:
                    which = await self._next(which)
                    continue
                if answer.is_success:
                    return answer.json()["data"]
                self.refusals.append(
                    f"{method} {path}: {answer.status_code} after {clock() - asked_at:.1f} s: {answer.text}"
                )
                which = await self._next(which)

    async def _follow(self, turn: Turn, which: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not turn.ended:
                turn.streams += 1
                began = False
                path = f"/api/v1/runs/{turn.run_id}/events/stream"
                headers = {"Last-Event-ID": str(turn.frames[-1].sequence)} if turn.frames else {}
                try:
                    async with self._client(which).stream("GET", path, headers=headers) as answer:
                        if answer.is_success:
                            began = True
                            await _read(answer, turn.frames)
                        elif (
                            answer.status_code != 503
                        ):  # a gateway that stops says so, and its streams resume at the other
                            self.refusals.append(f"stream: {answer.status_code} {(await answer.aread()).decode()}")
                except httpx.TransportError:
                    self.broken += began
                if not turn.ended:
                    which = await self._next(which)

    def _client(self, which: int) -> httpx.AsyncClient:
        return self._clients[which % len(self._clients)]

    async def _next(self, which: int) -> int:
        self.moved += 1
        await asyncio.sleep(PAUSE_SECONDS)
        return which + 1


async def _read(answer: httpx.Response, into: list[Frame]) -> None:
    """Every frame as soon as it is whole: what a broken stream has sent so far counts."""
    buffer = b""
    async for chunk in answer.aiter_raw():
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            frame, buffer = frame_of(buffer[: end + 2]), buffer[end + 2 :]
            if frame is not None:
                into.append(frame)


async def turns_end(load: Load, running: asyncio.Task[None], more: int) -> None:
    """That many turns more have ended: the load goes on, whatever was done meanwhile."""
    ended = sum(turn.ended for turn in load.turns) + more
    await asyncio.to_thread(
        poll_until, lambda: running.done() or sum(turn.ended for turn in load.turns) >= ended, "turns to end"
    )
    if running.done():
        await running


def judge(mesh: RunningMesh, load: Load) -> None:
    """Every turn was completed, and what its watcher was sent is its log, byte for byte, from either gateway."""
    clients = [mesh.client(url=url) for url in mesh.urls]
    for number, turn in enumerate(load.turns):
        assert_whole(turn.frames)
        assert turn.frames[-1].event_type == "run.completed", turn.frames[-1].data
        assert raw(turn.frames) == raw(watch(clients[number % len(clients)], turn.run_id))
    for client in clients:
        client.close()


def raw(events: Sequence[Frame]) -> list[bytes]:
    """The bytes of the frames."""
    return [frame.raw for frame in events]
