"""`harness run` and `harness runs watch`: live events, each once, over connections that break."""

import asyncio
import json
import os
import pty
import signal
from typing import Any

import pytest

from cli import main
from cli.api import Api
from cli.connection import connection_from
from cli.errors import CommandError, ExitCode
from cli.feed import RunFeed
from tests.cli.conftest import COMMAND, ROOT, ended, environment, harness, start
from tests.cli.stand_in import BREAK, HOLD, StandIn, failure, frames, plain

STARTED = ("run.started", {"harness_id": "reference", "agent_version": 1, "binding_id": "bnd_1"})
COMPLETED = ("run.completed", {"stop_reason": "end"})


def text(words: str, message_id: str = "m1") -> tuple[str, dict[str, Any]]:
    return "content.delta", {"message_id": message_id, "text": words}


TURN = [STARTED, text("one "), text("two "), text("three"), COMPLETED]
TURN_FRAMES = frames(TURN)


def sequences(lines: list[Any]) -> list[int]:
    return [line["sequence"] for line in lines]


async def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(mesh: StandIn) -> None:
    mesh.add_run(
        "run_1",
        [
            STARTED,
            ("reasoning.delta", {"message_id": "r", "text": "thinking"}),
            text("Hello "),
            text("there"),
            ("tool.started", {"tool_call_id": "t", "tool_name": "search", "arguments": {"q": "x"}}),
            ("tool.completed", {"tool_call_id": "t", "outcome": "error", "error": {"code": "e", "message": "no luck"}}),
            ("subagent.started", {"agent_id": "s", "parent_tool_call_id": "t", "agent_name": "helper"}),
            (
                "subagent.event",
                {"namespace": ["s"], "event_type": "content.delta", "data": {"message_id": "m", "text": "inner"}},
            ),
            ("subagent.completed", {"agent_id": "s", "parent_tool_call_id": "t", "outcome": "success"}),
            ("warning", {"code": "careful", "message": "watch out"}),
            text("Bye", "m2"),
            ("usage.updated", {"input_tokens": 3, "output_tokens": 4, "final": True}),
            COMPLETED,
        ],
    )
    result = await harness("run", "a", "hi", HARNESS_URL=mesh.url)
    assert (result.code, result.out) == (0, "Hello there\nBye\n")
    head, *lines = result.err.splitlines()
    (start_request,) = [seen for seen in mesh.seen if seen.method == "POST"]
    conversation = start_request.body["conversation_id"]
    assert conversation.startswith("cli-")
    assert conversation in head
    assert "run_1" in head
    assert lines == [
        "thinking",
        '→ search {"q":"x"}',
        "← search: error, no luck",
        "▸ subagent helper",
        "[s] inner",
        "◂ subagent s: success",
        "warning: watch out (careful)",
        "completed · 3 in, 4 out tokens",
    ]
    assert start_request.headers["authorization"] == "Bearer local-development-only"
    assert start_request.headers["x-harness-engine-subject"] == "local-user"


async def test_json_is_one_line_per_event_and_nothing_else(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    result = await harness("run", "a", "hi", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.err) == (0, "")
    assert [(line["run_id"], line["event_type"], line["data"]) for line in result.lines] == [
        ("run_1", *event) for event in TURN
    ]
    assert sequences(result.lines) == [1, 2, 3, 4, 5]


async def test_what_is_asked_for_is_sent(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    arguments = (
        "run",
        "a",
        "-",
        "--conversation",
        "c:1",
        "--context",
        str(ROOT / "LICENSE"),
        "--on-conflict",
        "enqueue",
        "--request-id",
        "r1",
    )
    result = await harness(*arguments, "--detach", "--json", stdin="grüß dich".encode(), HARNESS_URL=mesh.url)
    assert (result.code, result.document["run_id"]) == (0, "run_1")
    (seen,) = mesh.seen
    assert seen.body == {
        "agent_id": "a",
        "conversation_id": "c:1",
        "message": "grüß dich",
        "client_request_id": "r1",
        "on_conflict": "enqueue",
        "context": (ROOT / "LICENSE").read_text(),
    }


@pytest.mark.parametrize(
    ("terminal", "code"),
    [
        (COMPLETED, 0),
        (("run.failed", {"code": "capacity", "category": "capacity", "message": "full", "retryable": True}), 1),
        (("run.cancelled", {"reason": "deadline", "side_effect_status": "none"}), 6),
        (("run.interrupted", {"interrupt_id": "i", "reason": "form_input"}), 7),
    ],
)
async def test_the_exit_code_says_how_the_run_ended(
    mesh: StandIn, terminal: tuple[str, dict[str, Any]], code: int
) -> None:
    mesh.add_run("run_1", [STARTED, terminal])
    watched, past_its_end = await asyncio.gather(
        harness("runs", "watch", "run_1", HARNESS_URL=mesh.url),
        harness("runs", "watch", "run_1", "--after", "2", "--json", HARNESS_URL=mesh.url),
    )
    assert (watched.code, past_its_end.code, past_its_end.out) == (code, code, "")
    if code == 1:
        assert "full (capacity) It may succeed later." in watched.err


async def test_a_failure_is_told_with_its_category_when_to_try_again_and_what_may_have_happened(mesh: StandIn) -> None:
    failed: dict[str, Any] = {"code": "too_fast", "category": "throttled", "message": "Slow down.", "retryable": True}
    failed |= {"retry_after_seconds": 7, "side_effect_status": "possible"}
    mesh.add_run("run_1", [STARTED, ("run.failed", failed)])
    watched = await harness("runs", "watch", "run_1", HARNESS_URL=mesh.url)
    assert (
        "failed: Slow down. (too_fast, throttled) It may succeed later, in 7 s. Effects outside are possible."
        in watched.err
    )


async def test_a_broken_stream_is_resumed_and_nothing_is_shown_twice(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    first, second, third, fourth, fifth = TURN_FRAMES
    mesh.streams["run_1"] = [
        [b": keep-alive\n\n", first, second[:-5], BREAK],
        # Ends like a finished stream, though the run goes on.
        [b":\n" + first + second + third],
        # Repeats what the client has, whatever its cursor says.
        [b"retry: 1\n\n" + first + second + third + fourth, BREAK],
        [fifth],
    ]
    result = await harness("run", "a", "hi", "--json", HARNESS_URL=mesh.url)
    assert (result.code, sequences(result.lines)) == (0, [1, 2, 3, 4, 5])
    assert mesh.cursors() == [0, 1, 3, 4]


async def test_people_are_told_of_a_break_and_see_the_text_once(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[*TURN_FRAMES[:3], BREAK], TURN_FRAMES]
    result = await harness("run", "a", "hi", HARNESS_URL=mesh.url)
    assert (result.code, result.out.split()) == (0, ["one", "two", "three"])
    assert "resuming after event 3" in result.err


@pytest.mark.parametrize(
    "bad",
    [
        TURN_FRAMES[2],
        b"id: x\nevent: content.delta\ndata: {}\n\n",
        b"id: 2\nevent: content.delta\ndata: [1]\n\n",
        b"id: 2\nevent: content.delta\ndata: {\n\n",
        b"id: 99999999999\ndata: {}\n\n",
        b"data: " + b"x" * (5 * 1024 * 1024),
    ],
    ids=["gap", "no number", "no object", "no json", "huge number", "huge frame"],
)
async def test_a_stream_that_is_wrong_is_dropped_and_resumed(mesh: StandIn, bad: bytes) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[TURN_FRAMES[0] + bad], TURN_FRAMES]
    result = await harness("runs", "watch", "run_1", "--json", HARNESS_URL=mesh.url)
    assert (result.code, sequences(result.lines)) == (0, [1, 2, 3, 4, 5])
    assert mesh.cursors() == [0, 1]


async def test_a_busy_mesh_is_asked_again(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.stream_refusals = [
        failure(503, "capacity", "full"),
        failure(429, "rate_limited", "slow"),
        plain("bad gateway", 502),
    ]
    result = await harness("runs", "watch", "run_1", "--json", HARNESS_URL=mesh.url)
    assert (result.code, sequences(result.lines)) == (0, [1, 2, 3, 4, 5])


async def test_an_expired_cursor_ends_at_once(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.stream_refusals = [failure(410, "cursor_expired", "Too old.")]
    result = await harness("runs", "watch", "run_1", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.error["code"], len(mesh.cursors())) == (1, "cursor_expired", 1)


async def test_i35_a_stream_that_never_goes_on_is_given_up(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[TURN_FRAMES[0]], [BREAK]]
    connection = connection_from({"HARNESS_URL": mesh.url})
    async with Api(connection) as api:
        feed = RunFeed(api, "run_1", pauses=(0, 0, 0))
        with pytest.raises(CommandError, match="4 attempts") as caught:
            _ = [event async for event in feed.events()]
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "--after 1" in caught.value.hint
    assert len(mesh.cursors()) == 4


async def test_every_new_event_is_progress_whatever_it_takes(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[frame, BREAK] for frame in TURN_FRAMES]
    async with Api(connection_from({"HARNESS_URL": mesh.url})) as api:
        feed = RunFeed(api, "run_1", pauses=(0,))
        assert [event.sequence async for event in feed.events()] == [1, 2, 3, 4, 5]


async def test_i3_a_start_whose_answer_is_lost_is_repeated_with_the_same_id(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.starts_torn = 2
    result = await harness("run", "a", "hi", "--json", HARNESS_URL=mesh.url)
    assert (result.code, len(result.lines)) == (0, 5)
    starts = [seen.body["client_request_id"] for seen in mesh.seen if seen.method == "POST"]
    assert len(starts) == 3
    assert len(set(starts)) == 1
    assert len(starts[0]) > 16


async def test_i35_a_start_is_repeated_a_few_times_only(mesh: StandIn) -> None:
    mesh.starts_torn = 100
    result = await harness("run", "a", "hi", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.error["code"], len(mesh.seen)) == (3, "unreachable", 3)


async def test_ctrl_c_stops_watching_and_says_how_to_go_on(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[*TURN_FRAMES[:3], HOLD]]
    process = await start("run", "a", "hi", HARNESS_URL=mesh.url)
    assert process.stdout
    assert await process.stdout.readexactly(8) == b"one two "
    process.send_signal(signal.SIGINT)
    result = await ended(process)
    assert result.code == 130
    assert "run run_1 goes on" in result.err
    assert "harness runs watch run_1 --after 3" in result.err
    assert "harness runs cancel run_1" in result.err
    assert "Traceback" not in result.err


async def test_ctrl_c_in_json_is_an_error_document(mesh: StandIn) -> None:
    mesh.add_run("run_1", TURN)
    mesh.streams["run_1"] = [[TURN_FRAMES[0], HOLD]]
    process = await start("runs", "watch", "run_1", "--json", HARNESS_URL=mesh.url)
    assert process.stdout
    assert json.loads(await process.stdout.readline())["sequence"] == 1
    process.send_signal(signal.SIGINT)
    result = await ended(process)
    assert (result.code, result.error["run_id"], result.error["last_sequence"]) == (130, "run_1", 1)


async def test_a_reader_that_leaves_is_no_error(mesh: StandIn) -> None:
    mesh.add_run("run_1", [STARTED, *[text("x" * 4096) for _ in range(200)], COMPLETED])
    process = await start("runs", "watch", "run_1", HARNESS_URL=mesh.url)
    assert process.stdout
    assert process.stderr
    await process.stdout.readexactly(4096)
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined] - asyncio has no public way to close one pipe
    err = await process.stderr.read()
    assert await process.wait() == 141
    assert err == b""


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colour", "NO_COLOR"])
async def test_a_terminal_shows_colour_but_never_obeys_the_agent(mesh: StandIn, variables: dict[str, str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m:smile: [red]plain[/red]"
    mesh.add_run(
        "run_1",
        [
            STARTED,
            ("reasoning.delta", {"message_id": "r", "text": evil}),
            text(evil),
            ("warning", {"code": "w", "message": evil}),
            COMPLETED,
        ],
    )
    ours, theirs = pty.openpty()
    variables = environment({"HARNESS_URL": mesh.url, **variables})
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "runs", "watch", "run_1", cwd=ROOT, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = (await asyncio.to_thread(read_all, ours)).decode()
    assert await process.wait() == 0
    assert shown.count("\ufffd]0;owned\ufffd\ufffd[2J\ufffd31m:smile: [red]plain[/red]") == 3
    assert not any(sequence in shown for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\x07"))
    assert ("\x1b[32m" in shown) is ("NO_COLOR" not in variables)


def read_all(descriptor: int) -> bytes:
    data = b""
    try:
        while piece := os.read(descriptor, 65536):
            data += piece
    except OSError:
        # A terminal whose other side is closed reads as an input/output error.
        return data
    finally:
        os.close(descriptor)
    return data


async def test_a_busy_conversation_is_a_conflict_that_names_its_run(mesh: StandIn) -> None:
    details = [{"path": "", "code": "harness_session_conflict", "message": "busy", "run_id": "run_7"}]
    mesh.answers["start"] = failure(409, "harness_session_conflict", "The conversation is busy.", details)
    result = await harness("run", "a", "hi", "--conversation", "c", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.out) == (5, "")
    assert result.error["run_id"] == "run_7"
    assert "harness runs cancel run_7" in result.error["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "a/b", "hi"),
        ("run", "..", "hi"),
        ("run", "a", ""),
        ("run", "a", "hi", "--conversation", "a b"),
        ("run", "a", "hi", "--context", "/nonexistent"),
        ("run", "a", "-", "--context", "-"),
        ("run", "a", "hi", "--on-conflict", "nothing"),
        ("run", "a"),
        ("run", "a", "x" * 100_000, "--request-id", "ä"),
        ("runs", "watch", ".."),
        ("runs", "watch", "r", "--after", "-1"),
        ("runs", "watch", "r", "--after", "x"),
        ("runs", "watch", "r", "--after", "4294967296"),
        ("runs", "list", "--conversation", "c"),
        ("runs", "list", "--limit", "0"),
        ("runs", "nothing"),
        ("nothing",),
    ],
)
def test_wrong_use_ends_before_anything_is_sent(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens there: what was sent in spite of all would end with another code.
    monkeypatch.setenv("HARNESS_URL", "http://127.0.0.1:1")
    assert main.run([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["exit_code"]) == ("", 2)
    assert json.loads(err)["error"]


async def test_a_message_that_is_too_large_or_no_text_is_not_sent(mesh: StandIn) -> None:
    for stdin in (b"x" * (1024 * 1024 + 1), b"\xff", b""):
        result = await harness("run", "a", "-", "--json", stdin=stdin, HARNESS_URL=mesh.url)
        assert (result.code, result.out) == (2, "")
        assert result.error["error"]
    assert mesh.seen == []
