"""A conversation's turn from end to end, and what its subscribers see."""

from __future__ import annotations

import concurrent.futures
import json

import httpx

from tests.e2e.turns import (
    assert_whole,
    conversation,
    frames,
    save_agent,
    start,
    start_body,
    text_of,
    watch,
)
from tests.support.mesh import RunningMesh


def test_a_turn_is_answered_and_the_next_one_remembers_it(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    first = watch(client, start(client, agent, "my name is Ada", talk))
    assert_whole(first)
    assert first[-1].event_type == "run.completed"
    assert first[-1].data["thread_state"] == {"durability": "durable", "durable_revision": 1}
    second = watch(client, start(client, agent, "hello again", talk))
    assert_whole(second)
    assert "my name is Ada" in text_of(second)
    assert second[-1].data["thread_state"]["durable_revision"] == 2


def test_i13_a_run_goes_on_while_its_subscriber_is_away(client: httpx.Client) -> None:
    agent = save_agent(client)
    run_id = start(client, agent, {"n": 60, "rate": 60}, conversation())
    seen: list[bytes] = []
    with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
        for frame in frames(response):
            seen.append(frame.raw)
            if frame.sequence == 5:
                break
    with_header = watch(client, run_id, last_event_id=5)
    with_query = watch(client, run_id, after=5)
    whole = watch(client, run_id)
    assert_whole(whole)
    assert whole[-1].event_type == "run.completed"
    # I8: what one saw, every later replay shows, byte for byte.
    assert seen == [frame.raw for frame in whole[:5]]
    assert (
        [frame.raw for frame in with_header]
        == [frame.raw for frame in with_query]
        == [frame.raw for frame in whole[5:]]
    )
    # Last-Event-ID wins over after.
    assert watch(client, run_id, after=1, last_event_id=60) == whole[60:]


def test_i8_two_subscribers_see_identical_bytes(mesh: RunningMesh, client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), {"n": 300, "rate": 300, "delay": 0.2}, conversation())

    def subscribe() -> bytes:
        with mesh.client() as own, own.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
            return b"".join(response.iter_raw())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: subscribe(), range(8)))
    assert len(seen) == 1
    assert_whole(watch(client, run_id))


def test_a_finished_runs_stream_ends_at_once(client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), "hello", conversation())
    last = watch(client, run_id)[-1].sequence
    assert watch(client, run_id, after=last) == []
    assert watch(client, run_id, after=4_000_000_000) == []


def test_events_are_paged_with_the_streams_content(client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), {"n": 50}, conversation())
    streamed = watch(client, run_id)
    paged, cursor = [], 0
    while True:
        page = client.get(f"/api/v1/runs/{run_id}/events", params={"after": cursor, "limit": 7}).json()["data"]
        if not page["events"]:
            break
        assert len(page["events"]) <= 7
        paged += page["events"]
        cursor = page["next_cursor"]
    assert [(event["sequence"], event["event_type"], event["data"]) for event in paged] == [
        (frame.sequence, frame.event_type, frame.data) for frame in streamed
    ]


def test_a_long_poll_is_answered_by_the_next_event(client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), {"n": 1, "delay": 0.5}, conversation())
    started = client.get(f"/api/v1/runs/{run_id}/events", params={"after": 0, "wait": 30}).json()["data"]
    assert started["events"][0]["event_type"] == "run.started"
    rest = client.get(f"/api/v1/runs/{run_id}/events", params={"after": started["next_cursor"], "wait": 30}).json()[
        "data"
    ]
    assert rest["events"][0]["sequence"] == started["next_cursor"] + 1


def test_invoke_answers_the_whole_text(client: httpx.Client) -> None:
    answer = client.post("/api/v1/invoke", json=start_body(save_agent(client), "hello", conversation()))
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert "hello" in data["content"]
    assert data["content"] == text_of(watch(client, data["run_id"]))
    assert data["usage"]["output_tokens"] > 0


def test_i19_an_illegal_event_ends_in_a_protocol_failure(client: httpx.Client) -> None:
    agent = save_agent(client, profile="faults")
    bad = {"script": [{"text": "before"}, {"emit": {"tool_completed": {"tool_call_id": "never", "outcome": 1}}}]}
    events = watch(client, start(client, agent, bad, conversation()))
    assert_whole(events)
    assert (events[-1].event_type, events[-1].data["category"]) == ("run.failed", "protocol")
    assert "tool.completed" not in [frame.event_type for frame in events]


def test_i22_a_canary_in_a_providers_error_reaches_no_client(mesh: RunningMesh, client: httpx.Client) -> None:
    agent = save_agent(client, profile="faults")
    canary = "canary-3f1c"
    for step in (
        {"raise": canary},
        {"fail": {"category": "throttled", "message": "Slow down.", "provider_code": canary}},
    ):
        # The user's own message may hold it; what the harness says of its failure may not.
        events = watch(client, start(client, agent, {"script": [step]}, conversation()))
        assert events[-1].event_type == "run.failed"
        assert canary not in json.dumps(events[-1].data)
        run = client.get("/api/v1/runs", params={"agent_id": agent}).text
        assert canary not in run
