"""`harness runs resume`: decisions as JSON, from a file, and asked for on a terminal."""

import asyncio
import json
import os
import pty
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, ROOT, environment, harness
from tests.cli.stand_in import StandIn, failure

COMPLETED = ("run.completed", {"stop_reason": "end"})
FORM: list[dict[str, Any]] = [
    {"name": "city", "label": "City", "type": "string", "required": True, "options": [], "description": ""},
    {"name": "nights", "label": "", "type": "number", "required": False, "options": [], "description": "How long."},
    {"name": "breakfast", "label": "", "type": "boolean", "required": False, "options": [], "description": ""},
    {"name": "size", "label": "", "type": "choice", "required": True, "options": ["s", "m"], "description": ""},
]
CALLS: list[dict[str, Any]] = [
    {"tool_call_id": "c1", "tool_name": "mail", "arguments": {"to": "a"}, "allowed": ["approve", "reject", "edit"]},
    {"tool_call_id": "c2", "tool_name": "pay", "arguments": None, "allowed": ["approve", "reject"]},
]


@pytest.fixture
def waiting(mesh: StandIn) -> StandIn:
    """A mesh with a run that waits, and one that goes on with it."""
    mesh.add_run("run_1", [("run.interrupted", {"interrupt_id": "i1", "reason": "waits"})])
    mesh.add_run("run_2", [("content.delta", {"message_id": "m", "text": "done"}), COMPLETED], resumed_from="run_1")
    mesh.interrupt = asked(FORM, [])
    return mesh


def asked(fields: list[Any], calls: list[Any]) -> dict[str, Any]:
    return {
        "interrupt_id": "i1", "revision": 3, "run_id": "run_1", "binding_id": "bnd_1", "prompt": "Where to?", "namespace": [],
        "interrupt_type": "form_input" if fields else "tool_approval", "fields": fields, "tool_approvals": calls,
    }  # fmt: skip


def sent(mesh: StandIn) -> Any:
    """The decision that arrived."""
    (request,) = [seen for seen in mesh.seen if seen.method == "POST"]
    assert request.path == "/api/v1/runs/run_1/resume"
    return request.body


async def test_a_decision_is_sent_for_what_is_pending_and_the_new_run_is_shown(waiting: StandIn) -> None:
    decision = {"form_values": {"city": "Rome"}}
    result = await harness("runs", "resume", "run_1", "--decision", json.dumps(decision), HARNESS_URL=waiting.url)
    assert (result.code, result.out) == (0, "done\n"), result.err
    assert sent(waiting) == {"interrupt_id": "i1", "revision": 3, **decision}


async def test_a_decision_comes_from_a_file_or_standard_input(waiting: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "decision.yaml"
    file.write_text("interrupt_id: i1\nrevision: 2\ndismiss: true\n")
    result = await harness("runs", "resume", "run_1", "--decision", str(file), "--json", HARNESS_URL=waiting.url)
    assert result.code == 0
    assert [line["event_type"] for line in result.lines] == ["content.delta", "run.completed"]
    # What names its interrupt is sent as it is, also when nothing is pending any more.
    assert sent(waiting) == {"interrupt_id": "i1", "revision": 2, "dismiss": True}
    waiting.seen.clear()
    piped = await harness(
        "runs", "resume", "run_1", "--decision", "-", "--detach", "--json",
        stdin=b'{"dismiss": true}', HARNESS_URL=waiting.url,
    )  # fmt: skip
    assert (piped.code, piped.document["run_id"]) == (0, "run_2")


async def test_a_question_is_dismissed_under_a_name(waiting: StandIn) -> None:
    result = await harness("runs", "resume", "run_1", "--dismiss", "--request-id", "n", HARNESS_URL=waiting.url)
    assert result.code == 0
    assert sent(waiting) == {"interrupt_id": "i1", "revision": 3, "dismiss": True, "client_request_id": "n"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--decision", "{"), "no JSON object"),
        (("--decision", '{"form_values": {"a": NaN}}'), "no JSON object"),
        (("--decision", "{}"), "exactly one of"),
        (("--decision", '{"dismiss": true, "form_values": {}}'), "exactly one of"),
        (("--decision", '{"dismiss": true}', "--dismiss"), "two decisions"),
        (("--decision", "/nowhere"), "cannot be read"),
        ((), "no terminal"),
    ],
)
async def test_a_wrong_decision_is_refused_before_anything_is_sent(
    waiting: StandIn, arguments: tuple[str, ...], said: str
) -> None:
    result = await harness("runs", "resume", "run_1", *arguments, HARNESS_URL=waiting.url)
    assert result.code == 2
    assert said in result.err
    assert not [seen for seen in waiting.seen if seen.method == "POST"]


async def test_why_a_call_was_rejected_is_shown_where_its_end_is(waiting: StandIn) -> None:
    rejected = ("tool.completed", {"tool_call_id": "c2", "outcome": "rejected"})
    waiting.add_run("run_2", [rejected, COMPLETED], resumed_from="run_1")
    decision = {"tool_decisions": {"decisions": [{"tool_call_id": "c2", "reject": "too dear\x1b[31m"}]}}
    result = await harness("runs", "resume", "run_1", "--decision", json.dumps(decision), HARNESS_URL=waiting.url)
    assert "← c2: rejected, too dear\ufffd[31m" in result.err.splitlines()


async def test_calls_that_wait_are_shown_with_their_arguments(mesh: StandIn) -> None:
    asked_for = asked([], CALLS)
    mesh.add_run("run_1", [("interrupt.requested", asked_for), ("run.interrupted", {"interrupt_id": "i1"})])
    result = await harness("runs", "watch", "run_1", HARNESS_URL=mesh.url)
    assert result.code == 7
    lines = result.err.splitlines()
    assert lines[lines.index("? Where to?") :][:3] == ["? Where to?", 'waits: mail {"to":"a"}', "waits: pay"]


async def test_nothing_pending_is_a_conflict_that_says_what_to_do(waiting: StandIn) -> None:
    waiting.interrupt = None
    result = await harness("runs", "resume", "run_1", "--dismiss", HARNESS_URL=waiting.url)
    assert result.code == 5
    assert "no interrupt that waits" in result.err


async def test_a_refused_decision_names_every_problem(waiting: StandIn) -> None:
    problem = {"path": "form_values.city", "code": "required", "message": "The form needs this value."}
    waiting.answers["resume"] = failure(422, "invalid_request", "The decision does not fit what was asked.", [problem])
    result = await harness("runs", "resume", "run_1", "--decision", '{"form_values": {}}', HARNESS_URL=waiting.url)
    assert result.code == 1
    assert "form_values.city: The form needs this value." in result.err


async def typed(mesh: StandIn, lines: str) -> tuple[int, str]:
    """The command on a terminal where somebody types; how it ended and what was shown."""
    ours, theirs = pty.openpty()
    os.write(ours, lines.encode("utf-8", "surrogateescape"))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "runs", "resume", "run_1", cwd=ROOT, env=environment({"HARNESS_URL": mesh.url, "NO_COLOR": "1"}),
        stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    os.close(theirs)
    try:
        shown, _ = await process.communicate()
    finally:
        os.close(ours)
    assert process.returncode is not None
    return process.returncode, shown.decode()


async def test_on_a_terminal_every_field_is_asked_for_until_it_fits(waiting: StandIn) -> None:
    code, shown = await typed(waiting, "\nRome\ntwo\nnan\n1e999\n2\nperhaps\nyes\nxl\nm\n")
    assert code == 0, shown
    assert sent(waiting)["form_values"] == {"city": "Rome", "nights": 2, "breakfast": True, "size": "m"}
    assert "Where to?" in shown
    for said in (
        "A value is needed.",
        "How long.",
        "A finite number is needed.",
        "Answer yes or no.",
        "Choose one of: s, m.",
    ):
        assert said in shown


async def test_what_no_decision_can_hold_is_asked_for_again(waiting: StandIn) -> None:
    waiting.interrupt = asked([], CALLS)
    typed_in = ["e", '{"to": NaN}', "[" * 3_000, '{"to": "b"}', "r", "\udcff", "no"]
    code, shown = await typed(waiting, "".join(f"{line}\n" for line in typed_in))
    assert code == 0, shown
    first, second = sent(waiting)["tool_decisions"]["decisions"]
    assert (first["edit"], second["reject"]) == ({"to": "b"}, "no")
    for said in ("NaN is no number of JSON.", "It is nested too deeply.", "What was typed is not readable as text."):
        assert said in shown


async def test_an_optional_field_left_empty_is_not_sent(waiting: StandIn) -> None:
    code, shown = await typed(waiting, "Rome\n\n\ns\n")
    assert code == 0, shown
    assert sent(waiting)["form_values"] == {"city": "Rome", "size": "s"}


async def test_on_a_terminal_every_call_is_decided(waiting: StandIn) -> None:
    waiting.interrupt = asked([], CALLS)
    code, shown = await typed(waiting, 'e\n[1]\n{"to": "b"}\nedit\nr\ntoo dear\n')
    assert code == 0, shown
    assert sent(waiting)["tool_decisions"]["decisions"] == [
        {"tool_call_id": "c1", "edit": {"to": "b"}},
        {"tool_call_id": "c2", "reject": "too dear"},
    ]
    assert "One JSON object is needed." in shown
    assert "Answer with one of: approve, reject." in shown


async def test_ctrl_c_at_a_question_ends_at_once_and_says_that_nothing_was_decided(waiting: StandIn) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "runs", "resume", "run_1", cwd=ROOT, env=environment({"HARNESS_URL": waiting.url, "NO_COLOR": "1"}),
        stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(theirs)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(90):
            await process.stderr.readuntil(b"City: ")
            process.send_signal(signal.SIGINT)
            _, shown = await process.communicate()
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 130
    assert "nothing was decided" in shown.decode()
    assert not [seen for seen in waiting.seen if seen.method == "POST"]


async def test_a_run_that_waits_says_how_to_decide(waiting: StandIn) -> None:
    result = await harness("runs", "watch", "run_1", HARNESS_URL=waiting.url)
    assert result.code == 7
    assert "harness runs resume run_1" in result.err
