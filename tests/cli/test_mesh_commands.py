"""The commands that ask the mesh one thing: agents, runs, sessions; and what is shown when the mesh is not there or says no."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.responses import Response

from tests.cli.conftest import ROOT, ended, environment, harness
from tests.cli.stand_in import StandIn, failure, plain, success

EXAMPLE = "examples/agents/agent-example.yaml"


async def test_apply_says_what_became_of_it(mesh: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("id: a\nname: A\n")
    outcomes = []
    for change in ("", "", "description: new\n"):
        file.write_text(file.read_text() + change)
        result = await harness("agents", "apply", str(file), "--json", HARNESS_URL=mesh.url)
        assert (result.code, result.err) == (0, "")
        (agent,) = result.document["agents"]
        outcomes.append((agent["outcome"], agent["record"]["current_version"], agent["file"]))
    assert outcomes == [("created", 1, str(file)), ("unchanged", 1, str(file)), ("new version", 2, str(file))]
    await harness("agents", "disable", "a", HARNESS_URL=mesh.url)
    result = await harness("agents", "apply", "-", stdin=file.read_bytes(), HARNESS_URL=mesh.url)
    assert (result.code, result.out) == (0, "a: enabled again (version 2)\n")
    assert [seen.body["expected_revision"] for seen in mesh.seen if seen.method == "PUT"] == [0, 1, 1, 2]


async def test_the_example_is_applied_and_shown(mesh: StandIn) -> None:
    assert (
        await harness("agents", "apply", EXAMPLE, HARNESS_URL=mesh.url)
    ).out == "agent-example: created (version 1)\n"
    shown = await harness("agents", "show", "agent-example", HARNESS_URL=mesh.url)
    assert "max_run_seconds: 900" in shown.out
    document = (await harness("agents", "show", "agent-example", "--json", HARNESS_URL=mesh.url)).document
    assert document["version"]["blueprint"]["harness"]["id"] == "reference"


@pytest.mark.parametrize("command", ["apply", "validate"])
async def test_every_problem_is_shown_at_its_line(mesh: StandIn, tmp_path: Path, command: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("id: a\nlimits:\n  max_run_seconds: 0\n  max_tool_calls: -1\n")
    mesh.issues = [
        {"path": "limits.max_run_seconds", "code": "out_of_range", "message": "From 1 on."},
        {"path": "blueprint.limits.max_tool_calls", "code": "out_of_range", "message": "From 0 on."},
        {"path": "name", "code": "required", "message": "Give a name.\x1b[31m"},
    ]
    people, machine = await asyncio.gather(
        harness("agents", command, str(file), HARNESS_URL=mesh.url),
        harness("agents", command, str(file), "--json", HARNESS_URL=mesh.url),
    )
    assert (people.code, people.out, machine.code) == (1, "", 1)
    assert people.err.splitlines() == [
        f"error: {file}: The blueprint is not valid.",
        f"  {file}:3: limits.max_run_seconds: From 1 on.",
        f"  {file}:4: limits.max_tool_calls: From 0 on.",
        f"  {file}:1: name: Give a name.\ufffd[31m",
    ]
    if command == "apply":
        assert [problem["line"] for problem in machine.error["details"]] == [3, 4, 1]
        assert machine.document == {"agents": []}
    else:
        assert machine.document["valid"] is False


async def test_one_bad_file_does_not_stop_the_others(mesh: StandIn, tmp_path: Path) -> None:
    for name, text in (("bad", "name: no id\n"), ("good", "id: good\n")):
        (tmp_path / name).write_text(text)
    result = await harness(
        "agents", "apply", str(tmp_path / "bad"), str(tmp_path / "good"), "--json", HARNESS_URL=mesh.url
    )
    assert result.code == 1
    assert [problem["path"] for problem in result.error["details"]] == ["id"]
    assert [agent["record"]["agent_id"] for agent in result.document["agents"]] == ["good"]


async def test_a_file_that_is_no_blueprint_stops_everything(mesh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "good").write_text("id: good\n")
    (tmp_path / "bomb").write_text("a: &a [x]\nb: [*a]\n")
    result = await harness(
        "agents", "apply", str(tmp_path / "good"), str(tmp_path / "bomb"), "--json", HARNESS_URL=mesh.url
    )
    assert (result.code, result.out, mesh.seen) == (2, "", [])
    assert result.error["details"][0]["line"] == 1


async def test_somebody_elses_save_is_a_conflict(mesh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("id: a\n")
    mesh.answers["agents"] = plain("unused")
    mesh.agents["a"] = [{"id": "a"}]
    mesh.enabled["a"] = True
    # The record says one revision and the save is judged by another: what a save in between looks like.
    original = mesh._agent_json
    mesh._agent_json = lambda agent_id: {
        **original(agent_id),
        "record": {**original(agent_id)["record"], "revision": 9},
    }
    result = await harness("agents", "apply", str(tmp_path / "a"), HARNESS_URL=mesh.url)
    assert result.code == 5
    assert "apply again" in result.err


async def test_a_problem_the_error_names_already_is_not_said_twice(tmp_path: Path) -> None:
    file = str(tmp_path / "none.yaml")
    result = await harness("agents", "apply", file)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: {file}: cannot be read: No such file or directory.\n"


async def test_lists_are_pages_with_a_bound(mesh: StandIn) -> None:
    for number in range(120):
        mesh.agents[f"a{number:03}"] = [{}]
        mesh.enabled[f"a{number:03}"] = True
    every = (await harness("agents", "list", "--json", HARNESS_URL=mesh.url)).document
    assert ([agent["agent_id"] for agent in every["agents"]], every["more"]) == (sorted(mesh.agents), False)
    some = await harness("agents", "list", "--limit", "70", HARNESS_URL=mesh.url)
    rows = some.out.splitlines()
    assert (len(rows), rows[0].split()[0], rows[-1].split()[0]) == (71, "AGENT", "a069")
    assert "more than 70" in some.err


async def test_nothing_yet_says_what_to_do(mesh: StandIn) -> None:
    agents, runs = await asyncio.gather(
        harness("agents", "list", HARNESS_URL=mesh.url), harness("runs", "list", HARNESS_URL=mesh.url)
    )
    assert (agents.code, agents.out, runs.code, runs.out) == (0, "", 0, "")
    assert "harness agents apply" in agents.err
    assert "harness run AGENT" in runs.err


async def test_runs_are_shown_and_cancelled_and_a_conversation_cleared(mesh: StandIn) -> None:
    mesh.add_run("run_1", [("run.started", {})])
    shown = await harness("runs", "show", "run_1", HARNESS_URL=mesh.url)
    assert "status           running" in shown.out
    assert (await harness("runs", "cancel", "run_1", "--json", HARNESS_URL=mesh.url)).document["status"] == "cancelled"
    listed = await harness("runs", "list", "--agent", "a", "--conversation", "c", "--json", HARNESS_URL=mesh.url)
    assert [run["run_id"] for run in listed.document["runs"]] == ["run_1"]
    assert mesh.seen[-1].query == {"agent_id": "a", "conversation_id": "c", "page_size": "20"}
    cleared = await harness("sessions", "clear", "a", "c", "--json", HARNESS_URL=mesh.url)
    assert cleared.document == {"cleared": True, "closed_binding_id": "bnd_1", "next_epoch": 2}


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (failure(401, "unauthenticated", "No."), 2, "HARNESS_TOKEN"),
        (failure(404, "not_found", "No such."), 4, "HARNESS_SUBJECT"),
        (failure(409, "revision_conflict", "Changed."), 5, "apply again"),
        (failure(422, "invalid_request", "Bad.", [{"path": "p", "code": "c", "message": "why"}]), 1, "why"),
        (failure(500, "internal", "Broken.", [{"path": "", "code": "internal", "message": "", "incident_id": "inc_1"}]), 1, "inc_1"),
        (failure(503, "unavailable", "Away."), 3, "Try again"),
        (failure(504, "deadline_exceeded", "Late."), 3, "Try again"),
        (failure(503, "harness_disabled", "Disabled."), 1, "applying"),
        (plain("<html>hello</html>"), 3, "HARNESS_URL"),
        (plain("bad gateway", 502), 3, "HARNESS_URL"),
        (plain("moved", 302), 3, "HARNESS_URL"),
        (plain('{"success":true}'), 3, "HARNESS_URL"),
        (plain("[" * 100_000), 3, "HARNESS_URL"),
        (plain("\xff"), 3, "HARNESS_URL"),
    ],
)  # fmt: skip
async def test_every_refusal_has_its_exit_code_and_says_what_to_do(
    mesh: StandIn, answer: Response, code: int, says: str
) -> None:
    mesh.answers["agents"] = answer
    result = await harness("agents", "list", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.out, result.error["exit_code"]) == (code, "", code)
    assert says in result.err


async def test_an_error_of_the_mesh_cannot_steer_the_terminal(mesh: StandIn) -> None:
    mesh.answers["agents"] = failure(422, "invalid_request", "Bad\x1b[2J\u202e.")
    result = await harness("agents", "list", HARNESS_URL=mesh.url)
    assert result.err == "error: Bad\ufffd[2J\ufffd.\n"


async def test_i35_an_answer_without_end_is_not_kept(mesh: StandIn) -> None:
    mesh.answers["agents"] = plain("x" * (33 * 1024 * 1024))
    result = await harness("agents", "list", "--json", HARNESS_URL=mesh.url)
    assert (result.code, result.error["code"]) == (1, "answer_too_large")


async def test_no_mesh_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for arguments in (("agents", "list"), ("run", "a", "hi"), ("runs", "watch", "r"), ("agents", "apply", EXAMPLE)):
        result = await harness(*arguments, HARNESS_URL=url, HARNESS_DATA_DIR=str(tmp_path))
        assert (result.code, result.out) == (3, "")
        assert result.err.startswith(f"error: The mesh at {url} cannot be reached")
        assert "harness up" in result.err
    status = await harness("status", "--data-dir", str(tmp_path), "--json")
    assert (status.code, status.out, status.error["code"]) == (3, "", "no_mesh")


async def test_a_mesh_of_this_folder_is_pointed_at_while_it_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    gone = subprocess.Popen(["/bin/true"])  # noqa: ASYNC220 - ends at once
    gone.wait()
    for pid, pointed in ((os.getpid(), True), (gone.pid, False)):
        state = {"pid": pid, "url": "http://127.0.0.1:8020", "processes": []}
        (tmp_path / "mesh.json").write_text(json.dumps(state))
        url, folder = f"http://127.0.0.1:{port}", str(tmp_path)
        said = (await harness("agents", "list", HARNESS_URL=url, HARNESS_DATA_DIR=folder)).err
        assert ("The mesh of this folder is at http://127.0.0.1:8020: set HARNESS_URL to that." in said) is pointed


async def test_wrong_settings_are_said_before_anything_is_sent() -> None:
    result = await harness("agents", "list", "--json", HARNESS_URL="http://192.0.2.1:1")
    assert (result.code, result.error["code"]) == (2, "configuration")
    up = await harness("up", "--config", "/nonexistent/harness.yaml")
    assert (up.code, up.out) == (2, "")


HARNESS = {
    "harness_id": "reference", "display_name": "Reference", "description": "", "adapter_version": "1", "sdk_name": "", "sdk_version": "",
    "availability": "available", "certification": "experimental", "certification_reason": "No evidence.", "evidence_ids": [],
    "placements": ["provider_managed"], "reason": "",
    "profiles": [{"profile_id": "default", "placement": "provider_managed", "certification": "experimental", "description": "Here."}],
    "options_schema": {"properties": {"greeting": {"type": "string", "description": "Said first."}}},
    "capabilities": {
        "memory.semantic": {"level": "unavailable", "explanation": "Not connected.", "constraints": None, "evidence_id": ""},
        "skills": {"level": "native", "explanation": "Yes.", "constraints": {"max_skills": 5}, "evidence_id": "ev-1"},
    },
}  # fmt: skip
HEALTH = {
    "status": "unhealthy", "checked_at": "2026-01-02T03:04:06Z", "capacity": {"active": 2, "limit": 8, "pending": 0},
    "checks": [
        {"name": "provider", "status": "unhealthy", "reason": "Does not answer.", "last_success_at": "2026-01-02T03:04:05Z"},
        {"name": "storage", "status": None, "reason": "", "last_success_at": None},
    ],
}  # fmt: skip


async def test_harnesses_are_listed_and_shown(mesh: StandIn) -> None:
    mesh.answers["harnesses"] = success({"contract_version": 1, "catalog_revision": "c", "harnesses": [HARNESS]})
    mesh.answers["health"] = success({"harness_id": "reference", "availability": "available", "report": HEALTH})
    listed, shown, machine, none = await asyncio.gather(
        harness("harnesses", "list", HARNESS_URL=mesh.url),
        harness("harnesses", "show", "reference", HARNESS_URL=mesh.url),
        harness("harnesses", "show", "reference", "--json", HARNESS_URL=mesh.url),
        harness("harnesses", "show", "nothing", HARNESS_URL=mesh.url),
    )
    assert listed.out.splitlines()[1].split() == ["reference", "1", "available", "experimental", "default"]
    said = {" ".join(line.split()) for line in shown.out.splitlines()}
    assert said >= {
        "memory.semantic unavailable Not connected.",
        'skills native ev-1 {"max_skills":5} Yes.',
        "greeting string Said first.",
        "provider unhealthy 2026-01-02T03:04:05Z Does not answer.",
        "storage unknown",
        "health unhealthy",
        "evidence No evidence.",
        "default provider_managed experimental Here.",
        "active runs 2 of 8",
    }
    assert machine.document["harness"] == HARNESS
    assert none.code == 4


async def test_the_demo_saves_the_example_runs_a_turn_and_says_what_to_try(mesh: StandIn) -> None:
    mesh.add_run(
        "run_1", [("run.started", {}), ("content.delta", {"message_id": "m", "text": "Hi!"}), ("run.completed", {})]
    )
    code = f"import asyncio, cli.demo; asyncio.run(cli.demo.show_demo({mesh.url!r}))"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        cwd=ROOT,
        stdin=pipe,
        env=environment({"HARNESS_API_TOKENS": "first, second"}),
        stdout=pipe,
        stderr=pipe,
    )
    result = await ended(process)
    assert (result.code, result.out) == (0, "Hi!\n")
    assert "agent-example: created (version 1)" in result.err
    assert f"HARNESS_URL={mesh.url} harness run agent-example" in result.err
    assert "curl" in result.err
    assert f"  . {Path(sys.prefix, 'bin', 'activate')}\n" in result.err, (
        "`harness` is not on another terminal's path yet"
    )
    assert {seen.headers["authorization"] for seen in mesh.seen} == {"Bearer first"}
    assert "first" not in result.out + result.err


async def test_a_token_is_never_shown(mesh: StandIn) -> None:
    mesh.answers["agents"] = failure(401, "unauthenticated", "No.")
    result = await harness("agents", "list", HARNESS_URL=mesh.url, HARNESS_TOKEN="very-secret")
    assert mesh.seen[0].headers["authorization"] == "Bearer very-secret"
    assert "very-secret" not in result.out + result.err


async def test_a_huge_number_of_the_mesh_is_no_harm(mesh: StandIn) -> None:
    mesh.answers["agents"] = success({"agents": [], "next_page_token": "", "more": 10**30})
    assert (await harness("agents", "list", "--json", HARNESS_URL=mesh.url)).code == 0


async def test_help_names_the_exit_codes() -> None:
    result = await harness("--help")
    assert result.code == 0
    for part in ("HARNESS_TOKEN", "Exit codes", "130"):
        assert part in result.out


def test_the_command_starts_without_what_it_may_not_need() -> None:
    code = "import sys, cli.main; print(*[n for n in ('grpc', 'rich', 'httpx', 'yaml', 'pydantic', 'asyncio') if n in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment({}), capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


def test_the_reference_page_knows_every_exit_code() -> None:
    from cli.errors import ExitCode

    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [code for code in ExitCode if f"| {int(code)} |" not in page] == []
