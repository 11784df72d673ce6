"""Nothing leaks into the program, and nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.claude_agent_sdk.home import UNFINISHED, Home
from adapters.claude_agent_sdk.processes import end_tree, is_alive
from conformance.plane.run import kind, kinds, text_of
from harness.common.v1 import capability_token_pb2, placement_pb2
from tests.adapters.claude.model import call, portable, serving, text, thinking, waits
from tests.adapters.claude.rig import KEY, Rig, results, until

CLOSED = """
import os, sys
from pathlib import Path
from adapters.claude_agent_sdk import home
root = Path(sys.argv[1])
if os.getuid() == 0:
    # Where it lies, this user may not look.
    home.launcher.__file__ = os.devnull
    os.chown(root, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
closing, nesting = home.Home(root), home.Home(root)
closed = closing.workspace / "closed"
closed.mkdir()
(closed / "x").write_text("x")
closed.chmod(0)
at = os.open(nesting.workspace, os.O_RDONLY)
for _ in range(1200):
    os.mkdir("d", dir_fd=at)
    below = os.open("d", os.O_RDONLY, dir_fd=at)
    os.close(at)
    at = below
for left in (closing, nesting):
    os.close(left._lock)
home.Home(root).remove()
print("removed, and others begin" if not closing.folder.exists() and nesting.folder.exists() else "not so")
"""
ENVIRONMENT = "cat /proc/$PPID/environ | tr '\\0' '\\n'"


async def test_the_program_has_what_the_profile_allows_and_nothing_of_the_host(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """A planted variable, settings and notes of the host's user, a built-in tool and a skill that nobody allowed: none of them is there."""
    monkeypatch.setenv("PLANTED_VARIABLE", "canary-of-the-host")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://canary.invalid")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-canary: 1")
    home = rig.folder / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "CLAUDE.md").write_text("canary-of-the-host")
    (home / ".claude" / "settings.json").write_text('{"env": {"PLANTED_BY_SETTINGS": "canary-of-the-host"}}')
    monkeypatch.setenv("HOME", str(home))
    skill = rig.folder / "tea"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: tea\ndescription: How tea is made\n---\nUse hot water.\n")

    conversation = rig.conversation(
        builtin_tools=["Bash"],
        allowed_tools=["Bash"],
        skills={"tea": str(skill)},
        subagents={"helper": {"description": "Helps.", "prompt": "You help.", "tools": ["mcp__harness__kit_echo"]}},
        change=_with_tea,
    )
    await conversation.create()
    rig.model.script(
        [call("Bash", "call_a", command=ENVIRONMENT), call("Write", "call_b", file_path="/tmp/x", content="x")],
        [call("Skill", "call_c", skill="harness:tea"), call("Skill", "call_d", skill="verify")],
        [call("Agent", "call_e", description="d", prompt="help", subagent_type="helper")],
        [thinking("Well."), text("I help."), portable("kit_echo", "call_f", text="x"), portable("kit_pay", "call_g")],
        [text("Helped.")],
        [text("Thanks.")],
    )
    drafts = await conversation.say("go")
    assert kinds(drafts)[-1] == "run_completed"
    first = rig.model.requests[0]
    assert [one["name"] for one in first["tools"] if "harness" not in one["name"]] == ["Agent", "Bash", "Skill"]
    assert "- harness:tea: How tea is made" in first["system"][-1]["text"]
    assert "- helper: Helps." in first["system"][-1]["text"]
    assert "x-canary" not in rig.model.headers[0]
    assert "canary-of-the-host" not in str(rig.model.requests)
    completed = {one.payload.tool_completed.tool_call_id: one for one in drafts if kind(one) == "tool_completed"}
    printed = completed["call_a"].payload.tool_completed.result.string_value
    variables = {name: value for name, _, value in (line.partition("=") for line in printed.splitlines())}
    # Made from nothing: what the environment module and the SDK set, and no more.
    assert {"PLANTED_VARIABLE", "PLANTED_BY_SETTINGS", "HARNESS_CLAUDE_NAMES", "VIRTUAL_ENV"} & set(variables) == set()
    assert Path(variables["HOME"]).is_relative_to(rig.folder / "first")
    outcomes = {identity: one.payload.tool_completed.outcome for identity, one in completed.items()}
    assert outcomes == {"call_a": 1, "call_b": 2, "call_c": 1, "call_d": 2, "call_e": 1, "call_f": 1, "call_g": 2}
    # The subagent's own events stand in its namespace, and are balanced.
    inside = [kind(one) for one in drafts if list(one.namespace) == ["call_e"]]
    assert inside == [
        "reasoning_delta",
        "content_delta",
        "tool_started",
        "tool_completed",
        "tool_started",
        "tool_completed",
        "content_delta",
    ]
    assert [kind(one) for one in drafts if "subagent" in kind(one)] == ["subagent_started", "subagent_completed"]
    assert "Use hot water." in str(rig.model.requests[-1]["messages"])
    assert set(results(rig.model)) == {"call_a", "call_b", "call_c", "call_d", "call_e"}

    # The next turn goes on with what the subagent left, too. Settings among the agent's own files are no settings.
    (workspace,) = (rig.folder / "first").glob("*/workspace")
    (workspace / ".claude").mkdir()
    (workspace / ".claude" / "settings.json").write_text('{"env": {"PLANTED_BY_SETTINGS": "canary-of-the-workspace"}}')
    (workspace / "CLAUDE.md").write_text("canary-of-the-workspace")
    rig.model.script([call("Bash", "call_h", command="env")], [text("Again.")])
    assert text_of(await conversation.say("more")) == "Again."
    assert "canary-of-the-workspace" not in str(rig.model.requests)
    await conversation.cleanup()
    await rig.reached(lambda: not rig.left_behind())
    assert _processes_of(rig.folder) == []


async def test_i28_a_sandboxed_turn_reaches_its_model_through_the_egress_with_its_own_token(rig: Rig):
    """With the socket of the model facade and the run's token; without either, it names what is missing. No credential is looked at."""
    socket = str(rig.folder / "egress.sock")
    conversation = rig.conversation(
        placement=placement_pb2.PLACEMENT_SANDBOX_POD, base_url=None, credential_file=str(rig.folder / "nowhere")
    )
    await conversation.create()
    assert (await conversation.say("hi"))[-1].payload.run_failed.code == "model_unreachable"

    context = conversation.context()
    context.facades.append(capability_token_pb2.FacadeEndpoint(audience="model", address=f"unix:{socket}"))
    conversation.runtime_generation += 1
    conversation.incarnation = (await conversation.create_call(conversation.fence(), context=context)).incarnation
    assert (await conversation.say("hi"))[-1].payload.run_failed.code == "model_token_missing"
    async with serving(socket) as egress:
        run = conversation.run("hi")
        token = rig.canaries.plant("model-token")
        given = capability_token_pb2.CapabilityToken(audience="model", value=token, expires_at=run.input.deadline)
        run.input.tokens.append(given)
        assert text_of(await run.play()) == "ok"
        assert egress.headers[0]["authorization"] == f"Bearer {token}"
        assert KEY not in str(egress.headers)
    assert rig.model.requests == []


async def test_i20_a_program_does_not_outlive_the_process_it_works_for(rig: Rig, start: Callable[..., Awaitable]):
    """In a process of its own, as it is served; it is killed in the middle of a turn, and its program dies with it. What it had of the conversation lies
    below the profile's folder and nowhere else, and the next process removes it.
    """
    system = rig.folder / "system"
    system.mkdir()
    process = await start(module="adapters.claude_agent_sdk", environment={"TMPDIR": str(system)})
    conversation = rig.conversation(address=process.address)
    await conversation.create()
    for said in ("one", "two"):
        assert text_of(await conversation.say(said)) == "ok"
    rig.model.script([text("half"), waits(asyncio.Event())])
    stream = conversation.run("three").start()
    await until(stream, "content_delta")
    (pid,) = (rig.folder / "first").glob("*/turn-*/pid")
    program, program_folder = int(pid.read_text()), pid.parent.parent
    assert is_alive(program)
    # Stopped, it cannot notice and go by itself: it has to be killed.
    os.kill(program, signal.SIGSTOP)
    process.process.kill()
    await asyncio.to_thread(process.process.wait)
    await rig.reached(lambda: not is_alive(program))
    assert KEY not in process.log.read_text()
    assert [path.name for path in system.rglob("*")] == []
    assert list((rig.folder / "first").glob("harness-claude-*/turn-*/config/projects/*/*.jsonl"))

    after = rig.conversation(address=(await start(module="adapters.claude_agent_sdk")).address)
    await after.create()
    rig.model.script([text("ok")])
    assert text_of(await after.say("one")) == "ok"
    assert not program_folder.exists()
    await after.cleanup()
    await rig.reached(lambda: not rig.left_behind())


async def test_i20_what_a_tool_leaves_in_a_session_of_its_own_does_not_outlive_its_turn(rig: Rig):
    conversation = rig.conversation(builtin_tools=["Bash"], allowed_tools=["Bash"])
    await conversation.create()
    started = rig.folder / "started"
    # Its parent is gone as soon as it runs, and it holds nothing of the program's.
    command = f"setsid sh -c 'echo $$ > {started}; exec sleep 600' >/dev/null 2>&1 </dev/null & until [ -s {started} ]; do sleep 0.05; done"
    rig.model.script([call("Bash", "call_a", command=command)], [text("ok")])
    assert kinds(await conversation.say("go"))[-1] == "run_completed"
    pid = int(started.read_text())
    try:
        await rig.reached(lambda: not is_alive(pid))
    finally:
        end_tree(pid)
    await conversation.cleanup()


def test_i20_i23_what_an_agent_closed_is_removed_and_what_cannot_be_holds_up_nobody(folder: Path):
    """As a user who is not root, where the tests are. A folder that is nested a thousand deep is one that cannot be removed."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(folder)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["removed, and others begin"], done.stderr
    subprocess.run(["rm", "-rf", *map(str, folder.iterdir())], check=True)


def test_i20_what_a_killed_process_left_behind_goes_with_the_next_runtime(folder: Path):
    """The lock of a process that lives keeps its folder; without it, the folder goes at once. One that has no lock yet may be about to get it."""
    living, killed, removing, half, making = (Home(folder) for _ in range(5))
    (killed.folder / "workspace" / "of-the-agent").write_text("x")
    for home in (killed, removing, half, making):
        os.close(home._lock)
    for home in (removing, half):
        (home.folder / "lock").unlink()
    os.utime(half.folder, (1, 1))
    unfinished = making.folder.rename(folder / f"{UNFINISHED}1")
    made = Home(folder)
    assert living.folder.exists()
    assert removing.folder.exists()
    assert unfinished.exists()
    assert not killed.folder.exists()
    assert not half.folder.exists()
    for left in (removing.folder, unfinished):
        os.utime(left, (1, 1))
    another = Home(folder)
    assert sorted(folder.iterdir()) == sorted(home.folder for home in (living, made, another))
    for home in (another, made, living):
        home.remove()
    assert list(folder.iterdir()) == []


def _with_tea(blueprint) -> None:
    blueprint.skills.append("tea")


def _processes_of(folder: Path) -> list[str]:
    found: list[str] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                said = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder) in said:
                found.append(said)
    return found
