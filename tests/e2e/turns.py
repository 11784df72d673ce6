"""Words the end-to-end tests are written in."""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.mesh import poll_until

MOST_COUNTED = 3_000
TERMINALS = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")


def save_agent(client: httpx.Client, *, profile: str = "default", system: str = "Be helpful.", agent: str = "") -> str:
    """An agent of the reference harness; a new one unless named."""
    agent_id = agent or f"agent-{uuid.uuid4().hex[:12]}"
    blueprint = {
        "id": agent_id,
        "name": "Test",
        "harness": {"id": "reference", "profile_id": profile},
        "prompt": {"system": system},
    }
    answer = client.put(f"/api/v1/agents/{agent_id}", json={"blueprint": blueprint})
    assert answer.status_code == 200, answer.text
    return agent_id


def conversation() -> str:
    """A conversation nobody has had."""
    return f"conversation-{uuid.uuid4().hex}"


def start(client: httpx.Client, agent_id: str, message: str | dict[str, Any], conversation_id: str, **more: Any) -> str:
    """Starts a turn; its run id."""
    answer = client.post("/api/v1/runs", json=start_body(agent_id, message, conversation_id, **more))
    assert answer.status_code == 202, answer.text
    run_id: str = answer.json()["data"]["run_id"]
    return run_id


def start_when_possible(client: httpx.Client, agent_id: str, message: str, conversation_id: str) -> str:
    """Starts a turn, again while the mesh says that it is worth trying again (I34); its run id."""
    answers: list[httpx.Response] = []

    def started() -> bool:
        answers.append(client.post("/api/v1/runs", json=start_body(agent_id, message, conversation_id)))
        assert answers[-1].status_code in (202, 503), answers[-1].text
        return answers[-1].status_code == 202

    poll_until(started, "a turn to start")
    run_id: str = answers[-1].json()["data"]["run_id"]
    return run_id


def counting(rate: float) -> dict[str, Any]:
    """A turn that counts aloud, so many numbers a second, and ends when it is told to: after ten minutes at least if nobody does."""
    steps: list[dict[str, Any]] = []
    for number in range(MOST_COUNTED):
        steps += [{"text": f"{number}"}, {"sleep": 1 / rate}]
    return {"script": [*steps, {"sleep": 600}]}


def counted(events: list[Frame]) -> list[int]:
    """The numbers that a `counting` turn said: all of them, in order, once, or what is read here is not what was said (I7)."""
    numbers = [int(frame.data["text"]) for frame in events if frame.event_type == "content.delta"]
    assert numbers == list(range(len(numbers)))
    return numbers


def start_body(agent_id: str, message: str | dict[str, Any], conversation_id: str, **more: Any) -> dict[str, Any]:
    """The body of a start."""
    text = message if isinstance(message, str) else json.dumps(message)
    return {"agent_id": agent_id, "conversation_id": conversation_id, "message": text, **more}


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    sequence: int
    event_type: str
    data: Any
    raw: bytes


def frames(response: httpx.Response) -> Generator[Frame]:
    """The frames of a stream as they come; comments are left out."""
    buffer = b""
    for chunk in response.iter_raw():
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            raw, buffer = buffer[: end + 2], buffer[end + 2 :]
            frame = frame_of(raw)
            if frame is not None:
                yield frame


def frame_of(raw: bytes) -> Frame | None:
    """The event of a frame; None for a comment."""
    fields = dict(line.split(b": ", 1) for line in raw.strip().split(b"\n") if b": " in line and line[:1] != b":")
    if b"event" not in fields:
        return None
    return Frame(int(fields[b"id"]), fields[b"event"].decode(), json.loads(fields[b"data"]), raw)


def watch(
    client: httpx.Client, run_id: str, *, after: int | None = None, last_event_id: int | None = None
) -> list[Frame]:
    """All frames to the end of the stream."""
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    params = {} if after is None else {"after": after}
    with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream", params=params, headers=headers) as response:
        assert response.status_code == 200, response.read()
        return list(frames(response))


def text_of(events: list[Frame]) -> str:
    """The answer."""
    return "".join(frame.data["text"] for frame in events if frame.event_type == "content.delta")


def assert_whole(events: list[Frame]) -> None:
    """I7, I9: 1..n without a gap, one terminal, at the end."""
    assert [frame.sequence for frame in events] == list(range(1, len(events) + 1))
    assert [frame.event_type for frame in events if frame.event_type in TERMINALS] == [events[-1].event_type]
    assert events[0].event_type == "run.started"
