"""Portable tools through the whole mesh: from a draft over the broker to the events and back, with a person in between (run protocol, Tools; I24, I25)."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import Any

import httpx
import pytest

from tests.e2e.test_interrupts import decide, state
from tests.e2e.turns import Frame, assert_whole, conversation, start, watch

SANDBOXES = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None,
    reason="needs root and bubblewrap to make a strict sandbox; tests/sandbox shows the refusal without them",
)


def agent_with_tools(
    client: httpx.Client, policy: str = "sensitive_only", profile: str = "default", limit: int = 10
) -> str:
    """An agent that may calculate and read the clock."""
    agent_id = f"agent-{uuid.uuid4().hex[:12]}"
    blueprint = {
        "id": agent_id,
        "name": "Test",
        "harness": {"id": "reference", "profile_id": profile},
        "tools": {"bindings": [{"tool_id": "clock"}, {"tool_id": "calculator"}], "approval_policy": policy},
        "limits": {"max_tool_calls": limit},
    }
    answer = client.put(f"/api/v1/agents/{agent_id}", json={"blueprint": blueprint})
    assert answer.status_code == 200, answer.text
    return agent_id


def calculate(call_id: str, expression: str, **more: Any) -> dict[str, Any]:
    return {"tool": {"id": call_id, "name": "calculator", "arguments": {"expression": expression}, **more}}


def played(client: httpx.Client, agent: str, *steps: dict[str, Any]) -> list[Frame]:
    """The events of a script in a conversation of its own."""
    events = watch(client, start(client, agent, {"script": list(steps)}, conversation()))
    assert_whole(events)
    return events


def outcomes(events: list[Frame]) -> list[tuple[str, str, Any]]:
    """Call, outcome, and the result or the error's code, of every call that ended."""
    ended = [event.data for event in events if event.event_type == "tool.completed"]
    return [
        (one["tool_call_id"], one["outcome"], one.get("result") or one.get("error", {}).get("code")) for one in ended
    ]


@pytest.mark.parametrize("profile", ["default", pytest.param("sandboxed", marks=SANDBOXES)])
def test_tools_are_called_and_what_they_say_is_told(client: httpx.Client, profile: str) -> None:
    agent = agent_with_tools(client, profile=profile)
    events = played(
        client,
        agent,
        calculate("c1", "6 * 7", stream_arguments=True),
        calculate("c2", "1 / 0"),
        {"tool": {"id": "c3", "name": "calculator", "arguments": {"expresion": "1"}}},
        {"tool": {"id": "c4", "name": "weather"}},
        {"tool": {"id": "c5", "name": "clock"}},
        {"text": "done"},
    )
    assert events[-1].event_type == "run.completed", events[-1].data
    *told, clock = outcomes(events)
    assert told == [
        ("c1", "success", {"value": "42"}),
        ("c2", "error", "not_arithmetic"),
        ("c3", "error", "invalid_request"),
        ("c4", "error", "tool_unknown"),
    ]
    assert clock[:2] == ("c5", "success")
    assert clock[2]["timezone"] == "UTC"
    deltas = [event.data for event in events if event.event_type == "tool.arguments.delta"]
    assert {delta["tool_call_id"] for delta in deltas} == {"c1"}


def test_i25_calls_wait_for_a_person_and_are_made_as_was_decided(client: httpx.Client) -> None:
    agent, talk = agent_with_tools(client, policy="always"), conversation()
    calls = [calculate(name, f"{number} + 1") for number, name in enumerate(("yes", "no", "other", "wrong"))]
    run_id = start(client, agent, {"script": [*calls, {"text": "done"}]}, talk)
    asked = watch(client, run_id)
    assert [event.event_type for event in asked] == ["run.started", "interrupt.requested", "run.interrupted"]
    shown = state(client, agent, talk)["tool_approvals"]
    assert [(one["tool_call_id"], one["tool_name"]) for one in shown] == [
        (name, "calculator") for name in ("yes", "no", "other", "wrong")
    ]
    assert shown[0]["arguments"] == {"expression": "0 + 1"}

    def decisions(last: dict[str, Any]) -> dict[str, Any]:
        made = [{"approve": True}, {"reject": "Not now."}, {"edit": {"expression": "6 * 7"}}, last]
        names = ("yes", "no", "other", "wrong")
        return {"decisions": [{"tool_call_id": name, **one} for name, one in zip(names, made, strict=True)]}

    # Edited arguments are held to the schema before anything is consumed.
    refused = decide(client, run_id, tool_decisions=decisions({"edit": {"expression": 7}}))
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert any("decisions[3]" in detail["path"] for detail in refused.json()["details"]), refused.text
    answer = decide(client, run_id, tool_decisions=decisions({"reject": ""}))
    assert answer.status_code == 202, answer.text
    events = watch(client, answer.json()["data"]["run_id"])
    assert_whole(events)
    assert events[-1].event_type == "run.completed", events[-1].data
    assert outcomes(events) == [
        ("yes", "success", {"value": "1"}),
        ("no", "rejected", None),
        ("other", "success", {"value": "42"}),
        ("wrong", "rejected", None),
    ]
    started = [event.data["arguments"] for event in events if event.event_type == "tool.started"]
    assert started[2] == {"expression": "6 * 7"}
    assert state(client, agent, talk) is None


def test_i35_a_run_makes_no_more_calls_than_its_agent_allows(client: httpx.Client) -> None:
    agent = agent_with_tools(client, limit=2)
    events = played(client, agent, *(calculate(f"c{number}", "1 + 1") for number in range(3)))
    assert [told[1:] for told in outcomes(events)] == [
        ("success", {"value": "2"}),
        ("success", {"value": "2"}),
        ("error", "capacity"),
    ]
    assert events[-1].event_type == "run.completed"


def test_a_tool_that_the_operator_has_not_registered_is_refused_in_the_draft(client: httpx.Client) -> None:
    blueprint = {
        "id": "agent-x",
        "name": "Test",
        "harness": {"id": "reference"},
        "tools": {"bindings": [{"tool_id": "clock"}, {"tool_id": "weather"}]},
    }
    report = client.post("/api/v1/agent-drafts/validate", json={"blueprint": blueprint}).json()["data"]
    assert [(issue["path"], issue["code"]) for issue in report["issues"]] == [
        ("tools.bindings[1].tool_id", "tool_unregistered")
    ]
