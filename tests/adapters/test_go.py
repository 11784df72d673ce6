"""The reference adapter in Go, built here and run as a real process: its checks, its process, its lifecycle over gRPC, and the certification kit."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapters.sdk.testing import connected, kinds, text_of
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.malformed import taken
from tests.adapters.patience import check_patience
from tests.adapters.status import drained, refused
from tests.adapters.tool_broker import TOKEN, brokered, success, tool, waits

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "go"
PROGRAM = BUILD / "harness-reference-go"
REPORT = ROOT / "build" / "certification" / "reference_go"
BUILD_SECONDS = 900
WAIT_SECONDS = 90
FORM = {"interrupt": {"form": [{"name": "city", "type": "string", "required": True}]}}
FAULTS = {"allow_faults": True}


def _why_not() -> str:
    """Why nothing can be built here, or nothing."""
    if shutil.which("go") is None:
        return "there is no Go on the path"
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False).stdout
    version = re.match(r"go(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < (1, 24):
        return f"Go 1.24 or newer is needed, and this is {said.strip() or 'unknown'}"
    return ""


WHY_NOT = _why_not()
# The first build compiles its dependencies too, which takes minutes on a busy machine.
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(BUILD_SECONDS)]


def make(target: str) -> subprocess.CompletedProcess[str]:
    """`make` in the adapter's folder, one at a time on this machine: it writes generated code."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(
            ["make", "-C", str(ROOT / "adapters" / "go"), target],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )


@dataclass
class GoAdapter:
    """The adapter's process, at a socket in `folder` or at `listen`."""

    folder: Path
    listen: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    ready: dict[str, Any] = field(default_factory=dict)

    def start(self) -> "GoAdapter":
        """Returns once the process says that it serves. From the test's thread: that is the parent whose death it would share."""
        reading, writing = os.pipe()
        environment = {"HARNESS_READY_FD": str(writing), "HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        with (self.folder / "go.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM), "-address", self.listen or f"unix:{self.folder}/go.sock"],
                env=environment | self.environment,
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, f"the adapter did not start:\n{(self.folder / 'go.log').read_text()}"
        self.ready = json.loads(line)
        return self

    @property
    def address(self) -> str:
        """Where it serves, with the real port."""
        return self.ready["address"]

    def stop(self) -> int:
        """Ends the process if it still runs; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture(scope="session")
def built() -> None:
    made = make("build")
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture(scope="module")
def adapter(built: None) -> Iterator[GoAdapter]:
    """One for all tests that leave it running; each has a binding of its own."""
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        started = GoAdapter(Path(folder)).start()
        yield started
        assert started.stop() == 0


def client_of(adapter: GoAdapter, **settings: Any):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    settings.setdefault("profile_settings", FAULTS)
    return connected(adapter.address, harness_id="reference_go", **settings)


def script(*steps: dict[str, Any]) -> str:
    return json.dumps({"script": list(steps)})


async def test_it_is_certified(adapter: GoAdapter, folder: Path):
    """The main test: every rule that applies, by the command an author would use, with a second process as the other replica."""
    replica = GoAdapter(folder).start()
    try:
        certifying = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "certify", "--driver", "reference"),
            *("--target", adapter.address, "--replica", replica.address, "--report", str(REPORT)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await certifying.communicate()
    finally:
        assert replica.stop() == 0
    assert certifying.returncode == 0, said.decode()
    document = json.loads((REPORT / "certification.json").read_text())
    assert (document["verdict"], document["adapter"]["harness_id"]) == ("certified", "reference_go")
    # What only a worker has and what it does not claim, and nothing else, was left out.
    left_out = {rule for rule, given in document["rules"].items() if given["result"] != "passed"}
    files = {f"R8.{number}" for number in range(2, 11)}
    skills = {f"R9.{number}" for number in range(1, 6)}
    assert left_out == {"R1.15", "R1.16", "R10.1", "R10.2", *files, *skills}


def test_vet_format_and_unit_tests(built: None):
    checked = make("check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_a_stop_ends_a_run_and_its_stream_in_order(built: None, folder: Path):
    adapter = GoAdapter(folder, environment={"HARNESS_SHUTDOWN_GRACE_SECONDS": "0"}).start()
    assert (folder / "go.sock").stat().st_mode & 0o777 == 0o600
    async with client_of(adapter) as client:
        answer = await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert answer.incarnation == adapter.ready["incarnation"]
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "harness.runtime.v1.RuntimeService", "harness.adapter.v1.AdapterService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        stopping = asyncio.create_task(asyncio.to_thread(adapter.stop))
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        assert await stopping == 0
    assert not (folder / "go.sock").exists()


def test_a_wrong_setting_is_said_before_anything_is_served(built: None):
    for arguments in ([], ["-address", "nowhere"], ["-address", "127.0.0.1:0"]):
        ended = subprocess.run(
            [str(PROGRAM), *arguments], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
        )
        assert (ended.returncode, "-address" in ended.stderr or "HARNESS_ADAPTER_TOKEN" in ended.stderr) == (2, True)


async def test_a_port_is_served_to_who_has_the_token(built: None, folder: Path):
    adapter = GoAdapter(folder, "127.0.0.1:0", {"HARNESS_ADAPTER_TOKEN": "right"}).start()
    try:
        for token in ("right", "wrong", ""):
            async with connected(adapter.address, token=token) as client:
                asked = client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest(), metadata=client.metadata)
                if token == "right":
                    await asked
                else:
                    await refused(asked, "UNAUTHENTICATED", "unauthenticated")
    finally:
        assert adapter.stop() == 0


async def test_fences_hold(adapter: GoAdapter):
    async with client_of(adapter) as client:
        fence, stale = client.fence(2, "r2", 2), ("FAILED_PRECONDITION", "STALE_LEASE")
        elsewhere = drained(client.start(fence, client.input("x"), "other"))
        await refused(elsewhere, "FAILED_PRECONDITION", "incarnation_mismatch")
        initialize = pb2.InitializeRequest(fence=client.fence())
        await refused(client.runtime.Initialize(initialize), "NOT_FOUND", "runtime_unknown")
        assert await client.create()
        assert not await client.create()
        assert (await client.runtime.Initialize(initialize)).initialized
        assert not (await client.runtime.Initialize(initialize)).initialized
        await refused(drained(client.attach(fence)), "NOT_FOUND", "run_unknown")
        call = client.start(fence, client.input(script({"text": "hi"}, {"hang": True})))
        await call.read()
        await refused(drained(client.start(client.fence(1, "r1"), client.input("x"))), *stale)
        await refused(drained(client.start(client.fence(2, "other"), client.input("x"))), *stale)
        for late in (
            client.attach(client.fence(2, "r2", 1)),
            client.start(client.fence(2, "r2", 1), client.input("x")),
        ):
            await refused(drained(late), *stale)
        restart = pb2.RestartRequest(fence=client.fence())
        await refused(client.runtime.Restart(restart), "ABORTED", "operation_in_progress")
        younger = client.attach(client.fence(2, "r2", 3), 1)
        assert not (await younger.read()).batch.drafts
        await refused(drained(call), "ABORTED", "stream_superseded")
        # A higher turn ends the older one, a higher generation the runtime.
        ended = client.start(client.fence(3, "r3"), client.input(script({"hang": True})))
        cancelled = (await younger.read()).batch.drafts[-1].payload.run_cancelled
        assert cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
        client.runtime_generation = 2
        assert await client.create()
        assert kinds(await client.follow(ended)) == ["run.cancelled"]
        await refused(client.runtime.Initialize(initialize), *stale)
        await client.cleanup()
        await client.cleanup()
        await refused(drained(client.attach(client.fence(3, "r3"))), "NOT_FOUND", "runtime_gone")


async def test_nothing_is_lost_and_no_more_than_the_bound_is_under_way(adapter: GoAdapter):
    limits = runtime_pb2.RuntimeLimits(max_unacked_events=8)
    async with client_of(adapter, limits=limits) as client:
        await client.create()
        fence, seen = client.fence(1, "r1"), 0
        call = client.start(fence, client.input('{"n": 40, "size": 4}'))
        while seen < 8:
            seen += len((await call.read()).batch.drafts)
        assert seen == 8
        call.cancel()
        # The stream is lost: the run waits for what is not acknowledged, and all of it comes again.
        again = await client.attach(fence, 5).read()
        assert again.batch.first_offset == 6
        assert len(again.batch.drafts) == 3
        await refused(drained(client.attach(fence, 9)), "OUT_OF_RANGE", "offset_ahead")
        await client.ack(fence, 6)
        await client.ack(fence, 2)
        await refused(drained(client.attach(fence, 5)), "OUT_OF_RANGE", "offset_forgotten")
        joined = await client.follow(client.start(fence, client.input("another message")), fence)
        assert kinds(joined) == ["content.delta"] * 34 + ["run.completed"]


async def test_a_cancel_is_remembered_and_ends_what_hangs(adapter: GoAdapter):
    async with client_of(adapter) as client:
        early = client.fence(1, "r1")
        await refused(client.cancel(early), "NOT_FOUND", "runtime_unknown")
        await client.create()
        await refused(drained(client.start(early, client.input("x"))), "FAILED_PRECONDITION", "run_cancelled")
        fence = client.fence(2, "r2")
        call = client.start(fence, client.input(script({"text": "hi"}, {"hang": True})))
        await call.read()
        answers = await asyncio.gather(*(client.cancel(fence) for _ in range(3)))
        assert not any(answer.side_effect_status == 1 for answer in answers)
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        assert (await client.cancel(fence)).already_ended
        late = client.fence(3, "r3")
        overdue = client.start(late, client.input(script({"hang": True}), seconds=0.1))
        terminal = (await client.follow(overdue))[-1].payload.run_cancelled
        assert terminal.reason == payload_pb2.CANCEL_REASON_DEADLINE


async def test_i24_i25_a_decision_is_checked_and_consumed_once(adapter: GoAdapter):
    async with client_of(adapter) as client:
        steps = json.dumps({"scripts": [[FORM], [{"decision": True}]]})
        paused = await client.turn(steps)
        assert kinds(paused) == ["interrupt.requested", "run.interrupted"]
        pending = await client.pending_interrupt()
        assert pending is not None

        def decision(**changes: Any) -> runtime_pb2.ResumeDecision:
            made = runtime_pb2.ResumeDecision(
                interrupt_id=pending.interrupt_id, revision=1, interrupted_run_id=pending.run_id
            )
            made.form_values.update({"city": "Oslo"})
            made.MergeFrom(runtime_pb2.ResumeDecision(**changes))
            return made

        async def resumed(turn: int, answer: runtime_pb2.ResumeDecision):
            return await client.follow(client.resume(client.fence(turn, f"r{turn}"), client.input(""), answer))

        approval = runtime_pb2.ToolDecisions(decisions=[runtime_pb2.ToolDecision(tool_call_id="c", approve=True)])
        for turn, wrong in enumerate(({"interrupt_id": "x"}, {"interrupted_run_id": "x"}), 2):
            assert kinds(await resumed(turn, decision(**wrong))) == ["run.failed"]
        assert kinds(await resumed(4, decision(tool_decisions=approval))) == ["run.failed"]
        assert await client.pending_interrupt() == pending
        right = await resumed(5, decision())
        assert json.loads(text_of(right)) == {"form": {"city": "Oslo"}}
        assert await client.pending_interrupt() is None
        assert await resumed(5, decision()) == right
        assert kinds(await resumed(6, decision())) == ["run.failed"]


async def test_i25_a_call_that_waits_starts_only_once_it_is_approved(adapter: GoAdapter):
    asked: list[Any] = []

    async def pays(request: Any):
        asked.append(request)
        return waits(request) if len(asked) == 1 else success({"paid": 1})

    pay = {"id": "c1", "name": "pay", "arguments": {"amount": 1}, "stream_arguments": True}
    add = {"id": "c2", "name": "add", "arguments": {"numbers": [1, 2]}}
    steps = script({"tool": pay}, {"tool": add}, {"text": "paid"})
    async with brokered(pay=pays, add=[success(3)]) as broker:
        tools = [tool("pay", sensitive=True), tool("add")]
        async with client_of(adapter, tools=tools, tool_address=broker.address) as client:
            paused = await client.turn(steps, tool_token=TOKEN)
            assert kinds(paused) == ["tool.started", "tool.completed", "interrupt.requested", "run.interrupted"]
            assert paused[0].payload.tool_started.tool_call_id == "c2"
            requested = paused[2].payload.interrupt_requested
            assert [approval.tool_call_id for approval in requested.tool_approvals] == ["c1"]
            decision = runtime_pb2.ResumeDecision(
                interrupt_id=requested.interrupt_id, revision=1, interrupted_run_id=asked[0].fence.run_id
            )
            decision.tool_decisions.decisions.add(tool_call_id="c1", approve=True)
            fence, turn = client.fence(2, "r2"), client.input("", tool_token=TOKEN)
            resumed = await client.follow(client.resume(fence, turn, decision))
            assert kinds(resumed) == [
                "tool.started",
                "tool.arguments.delta",
                "tool.completed",
                "content.delta",
                "run.completed",
            ]
            assert resumed[2].payload.tool_completed.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS
    assert [(request.tool_call_id, request.fence.run_id) for request in asked][1] == ("c1", "r2")
    assert set(broker.credentials) == {f"Bearer {TOKEN}"}


async def test_the_log_has_types_and_places_and_nothing_of_what_passes_through(built: None, folder: Path):
    canary = "canary-7f3a91"

    def planted(where: str) -> str:
        return f"{canary}-{where}"

    steps = script(
        {"text": planted("text")},
        {"reasoning": planted("reasoning")},
        {"tool": {"id": "c1", "name": "add", "arguments": {"numbers": planted("argument")}, "stream_arguments": True}},
        {"tool_result": {"id": "p1", "name": "own", "arguments": {"q": planted("query")}, "result": planted("result")}},
        {"warning": {"code": "odd", "message": planted("warning")}},
        {"interrupt": {"form": [{"name": "city", "type": "string", "label": planted("label")}]}},
    )
    environment = {"HARNESS_LOG_LEVEL": "debug"}
    adapter = GoAdapter(folder, environment=environment).start()
    try:
        async with brokered(add=[success(planted("outcome"))]) as broker:
            settings = {**FAULTS, "key": planted("setting")}
            tools = [tool("add")]
            async with client_of(
                adapter, profile_settings=settings, tools=tools, tool_address=broker.address
            ) as client:
                turn = await client.turn(steps, tool_token=planted("token"), system_prompt=planted("prompt"))
                assert kinds(turn)[-1] == "run.interrupted"
                for wrong in (
                    {"raise": planted("exception")},
                    {"fail": {"category": "internal", "message": planted("failure")}},
                ):
                    assert kinds(await client.turn(script(wrong)))[-1] == "run.failed"
                illegal = {"emit": {"type": "tool.started", "data": {"tool_call_id": planted("!"), "tool_name": "x"}}}
                assert kinds(await client.turn(script(illegal)))[-1] == "run.failed"
                assert kinds(await client.turn(planted("message")))[-1] == "run.completed"
                malformed = client.start(client.fence(9, planted("run id")), client.input("x"))
                await refused(drained(malformed), "INVALID_ARGUMENT", "invalid_request")
    finally:
        assert adapter.stop() == 0
    log = (folder / "go.log").read_text()
    assert "run_failed" in log, log
    assert canary not in log


async def test_i34_a_call_that_its_facade_refuses_for_good_is_not_made_again(adapter: GoAdapter):
    await check_patience(partial(client_of, adapter))


async def test_no_constraint_of_the_contracts_can_be_broken(adapter: GoAdapter):
    async with client_of(adapter) as client:
        await client.create()
        found, count = await taken(client)
        assert not found
        assert count > 250
        await client.turn("hello")
