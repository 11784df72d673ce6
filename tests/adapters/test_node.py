"""The reference adapter in TypeScript, as a real process: its build, its process, its lifecycle over gRPC, its calls to facades, and the certification kit."""

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapters.sdk.testing import connected, kinds, text_of
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2, error_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.malformed import taken
from tests.adapters.patience import check_patience
from tests.adapters.processes import AdapterProcess
from tests.adapters.status import details, drained, refused
from tests.sessions.processes import Client, Sessions, fence_of, token_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "adapters" / "node"
BUILD = ROOT / "build" / "node"
REPORT = ROOT / "build" / "certification" / "reference_node"
HARNESS = Path(sys.executable).with_name("harness")
# As deep below the root as the sources, so that the paths in their settings hold.
MAIN = BUILD / "dist" / "src" / "main.js"
LEAST_NODE = 20
REQUIRED = "HARNESS_TEST_NODE_REQUIRED"
"""Set where there must be Node and its packages: then their absence fails the tests instead of skipping them."""
# What of proto/ the adapter is made of.
AREAS = ("adapter", "common", "event", "runtime", "state", "tool")

# The first test of a session builds, and on a slow machine that takes longer than one test may.
pytestmark = pytest.mark.timeout(600)


def missing(reason: str) -> None:
    """Skips with the reason, or fails where Node is required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def built() -> None:
    """`build/node`, made once for all workers of a session and again when something it is made of has changed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            missing(f"there is no {program} on the path")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int((re.match(r"v(\d+)\.", version) or ["", "0"])[1]) < LEAST_NODE:
        missing(f"node is {version.strip()}, and this needs {LEAST_NODE} or newer")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (ROOT / "build" / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build()


def build() -> None:
    if is_current("program", wanted := digest(sources(), contracts())):
        return
    if (BUILD / "src").exists():
        shutil.rmtree(BUILD / "src")
    for file in sources():
        target = BUILD / file.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    # Where buf is; npm itself adds the programs of the packages.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if not is_current("packages", locked := digest([SOURCES / "package-lock.json"])):
        installed = npm("ci", "--no-audit", "--no-fund", environment=environment)
        if installed.returncode != 0:
            missing(f"the packages of adapters/node could not be installed: {installed.stdout[-1_000:]}")
        made_of("packages", locked)
    made = npm("run", "build", environment=environment)
    assert made.returncode == 0, made.stdout[-4_000:]
    made_of("program", wanted)


def is_current(part: str, wanted: str) -> bool:
    """Whether this part of the build is there and made of just that. If not, it counts as missing until it is made again."""
    stamp = BUILD / f"{part}.stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    stamp.unlink(missing_ok=True)
    return False


def made_of(part: str, content: str) -> None:
    (BUILD / f"{part}.stamp").write_text(content)


def npm(*arguments: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["npm", *arguments],
        cwd=BUILD,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
        check=False,
    )


def sources() -> list[Path]:
    settings = ["package.json", "package-lock.json", ".npmrc", "tsconfig.json", "buf.gen.yaml"]
    return [*(SOURCES / name for name in settings), *sorted((SOURCES / "src").rglob("*.ts"))]


def contracts() -> list[Path]:
    return [file for area in AREAS for file in sorted((ROOT / "proto" / "harness" / area).rglob("*.proto"))]


def digest(*files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in (file for group in files for file in group):
        total.update(f"{file.relative_to(ROOT)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


@dataclass
class NodeProcess(AdapterProcess):
    """`node main.js` on a unix socket in `folder` or at `listen`."""

    def _start(self) -> "NodeProcess":
        reading, writing = os.pipe()
        environment = {
            "PATH": os.environ["PATH"],
            "HARNESS_READY_FD": str(writing),
            "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
            **self.environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["node", str(MAIN), "--listen", self.address, *self.arguments],
                env=environment,
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, f"the adapter did not start:\n{self.log.read_text()}"
        self.ready = json.loads(line)
        return self


@pytest.fixture(scope="module")
def process(built) -> Iterator[NodeProcess]:
    """One for all tests that leave it running; each has a binding of its own."""
    with tempfile.TemporaryDirectory(prefix="ha-") as folder:
        started = NodeProcess(Path(folder))._start()
        yield started
        assert asyncio.run(started.stop()) == 0


def client_of(process: NodeProcess, **settings: Any):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    return connected(process.address, harness_id="reference_node", **settings)


def script(*steps: dict[str, Any]) -> str:
    return json.dumps({"script": list(steps)})


# --- the process ---


async def test_the_process_announces_itself_and_its_health_and_ends_in_order(built, folder):
    process = NodeProcess(folder, environment={"HARNESS_SHUTDOWN_GRACE_SECONDS": "0"})
    await process.start()
    assert process.socket_mode == 0o600
    async with client_of(process) as client:
        answer = await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert answer.incarnation == process.ready["incarnation"]
        assert answer.descriptor.harness_id == "reference_node"
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "harness.runtime.v1.RuntimeService", "harness.adapter.v1.AdapterService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        # A run that works is cancelled by a stop, and its stream gets the end.
        stopping = asyncio.create_task(process.stop())
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        assert await stopping == 0
    assert process.socket_mode is None


def test_a_wrong_setting_is_said_before_anything_is_served(built):
    for arguments in ([], ["--listen", "127.0.0.1:0"]):
        ended = subprocess.run(["node", str(MAIN), *arguments], capture_output=True, text=True, timeout=90, check=False)
        assert (ended.returncode, "--listen" in ended.stderr) == (2, True), ended.stderr


async def test_a_port_is_served_to_who_has_the_token(built, folder):
    process = NodeProcess(folder, listen="127.0.0.1:0", environment={"HARNESS_ADAPTER_TOKEN": "right"})
    await process.start()
    try:
        for token, allowed in (("right", True), ("wrong", False), ("", False)):
            async with connected(process.ready["address"], token=token) as client:
                asked = client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest(), metadata=client.metadata)
                if allowed:
                    await asked
                else:
                    await refused(asked, "UNAUTHENTICATED", "unauthenticated")
    finally:
        assert await process.stop() == 0


# --- the kit ---


async def test_it_is_certified(process, folder):
    report = folder / "report"
    replica = await NodeProcess(folder).start()
    try:
        ended = await asyncio.to_thread(
            subprocess.run,
            [
                str(HARNESS),
                "certify",
                "--target",
                process.address,
                "--replica",
                replica.address,
                "--report",
                str(report),
            ],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        assert await replica.stop() == 0
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads((report / "certification.json").read_text())
    assert (document["verdict"], document["adapter"]["harness_id"]) == ("certified", "reference_node")
    # Claimed, and shown by the tests here alone: the kit sees no logs.
    unseen = {key for key, claim in document["capabilities"].items() if claim["result"] == "not_verified"}
    assert unseen <= {"observability.redaction"}
    # For whoever keeps what the tests leave behind.
    shutil.copytree(report, REPORT, dirs_exist_ok=True)


# --- the lifecycle ---


async def test_fences_hold(process):
    async with client_of(process) as client:
        fence = client.fence(2, "r2", 2)
        elsewhere = client.start(fence, client.input("x"), "other")
        await refused(drained(elsewhere), "FAILED_PRECONDITION", "incarnation_mismatch")
        initialize = client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence()))
        await refused(initialize, "NOT_FOUND", "runtime_unknown")
        assert await client.create()
        assert not await client.create()
        await refused(drained(client.attach(fence)), "NOT_FOUND", "run_unknown")
        call = client.start(fence, client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        stale = "FAILED_PRECONDITION", "STALE_LEASE"
        await refused(drained(client.start(client.fence(1, "r1"), client.input("x"))), *stale)
        await refused(drained(client.start(client.fence(2, "other"), client.input("x"))), *stale)
        await refused(drained(client.attach(client.fence(2, "r2", 1))), *stale)
        restart = client.runtime.Restart(pb2.RestartRequest(fence=client.fence()))
        await refused(restart, "ABORTED", "operation_in_progress")
        younger = client.attach(client.fence(2, "r2", 3), 1)
        await younger.read()
        await refused(call.read(), "ABORTED", "stream_superseded")
        # A younger turn ends what the older one does.
        await client.follow(client.start(client.fence(3, "r3"), client.input('{"n": 2}')))
        (ended,) = (await younger.read()).batch.drafts
        assert ended.payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
        await client.cleanup()
        restart = client.runtime.Restart(pb2.RestartRequest(fence=client.fence()))
        await refused(restart, "NOT_FOUND", "runtime_gone")
        client.runtime_generation = 2
        assert await client.create()
        await refused(drained(client.start(client.fence(4, "r4", runtime_generation=1), client.input("x"))), *stale)


async def test_a_malformed_request_names_the_field_and_not_its_value(process):
    async with client_of(process) as client:
        await client.create()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(client.start(client.fence(1, "no spaces"), client.input("x")))
        name, info, status = details(caught.value)
        assert (name, info.reason) == ("INVALID_ARGUMENT", "invalid_request")
        assert "fence.run_id" in status.message
        assert "no spaces" not in str(status)
        garbage: Any = client.channel.unary_unary("/harness.runtime.v1.RuntimeService/Initialize")
        await refused(garbage(b"\x0a\xff\xff"), "INVALID_ARGUMENT", "invalid_request")


async def test_drafts_wait_until_they_are_durable_and_none_is_lost(process):
    async with client_of(process, limits=runtime_pb2.RuntimeLimits(max_unacked_events=4)) as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input('{"n": 10}'))
        drafts: list[Any] = []
        while len(drafts) < 4:
            drafts += (await call.read()).batch.drafts
        assert len(drafts) == 4
        await client.ack(fence, 2)
        await refused(drained(client.attach(fence, 1)), "OUT_OF_RANGE", "offset_forgotten")
        # Two more may have come since; none beyond the bound has.
        await refused(client.ack(fence, 7), "OUT_OF_RANGE", "offset_ahead")
        rest = await client.follow(client.attach(fence, 4), fence)
        assert kinds([*drafts, *rest]) == ["content.delta"] * 10 + ["run.completed"]


async def test_i25_a_decision_must_be_one_of_those_that_were_asked_for(process):
    async with client_of(process) as client:
        await client.create()
        asked = {
            "interrupt": {"approve": [{"id": "c1", "name": "pay", "arguments": {"sum": 1}, "allowed": ["approve"]}]}
        }
        first = client.fence(1, "r1")
        await client.follow(client.start(first, client.input(script(asked))), first)
        decision = runtime_pb2.ResumeDecision(interrupt_id="interrupt-1", revision=1, interrupted_run_id="r1")
        edit = decision.tool_decisions.decisions.add(tool_call_id="c1")
        edit.edit.update({"sum": 1_000})
        (failed,) = await client.follow(client.resume(client.fence(2, "r2"), client.input(""), decision))
        assert failed.payload.run_failed.code == "decision_invalid"
        edit.approve = True
        second = client.fence(3, "r3")
        assert kinds(await client.follow(client.resume(second, client.input(""), decision), second)) == [
            "run.completed"
        ]
        (failed,) = await client.follow(client.resume(client.fence(4, "r4"), client.input(""), decision))
        assert failed.payload.run_failed.code == "interrupt_lost"


async def test_faults_are_the_operators_to_allow(process):
    async with client_of(process) as client:
        (failed,) = await client.turn(script({"raise": "a secret"}))
        assert failed.payload.run_failed.code == "faults_not_allowed"
        allowed = client.another(profile_settings={"allow_faults": True}, persistence=client.persistence)
        (failed,) = await allowed.turn(script({"raise": "a secret"}))
        assert failed.payload.run_failed.code == "adapter_defect"
        assert "a secret" not in str(failed)
        assert text_of(await allowed.turn("hello")).endswith("Now you say: hello")
    assert "a secret" not in process.log.read_text()


# --- facades, of a real sessions process ---


@pytest.fixture
async def sessions():
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    started = await Sessions(folder).start()
    client = Client(started)
    yield client
    await client.close()
    await started.stop()
    shutil.rmtree(folder)


async def turn_of(sessions: Client, client: Any, run_id: str, message: str, *, token: str = "", commit: bool = True):
    """One turn as the control plane runs it: reserve, run, commit, release."""
    # Ids of bindings are the same in every sessions process of the tests, and the adapter remembers their generations.
    conversation = run_id.partition("-")[0]
    binding = await sessions.granted(run_id, conversation)
    fence = fence_of(binding)
    client.binding_id, client.epoch = binding.binding_id, binding.epoch
    client.runtime_generation = binding.runtime_generation
    await client.create()
    given = client.input(message, token=token or token_of(fence), thread_revision=binding.head.revision)
    drafts = await client.follow(client.start(fence, given), fence)
    if commit and drafts[-1].HasField("pending_head"):
        pending = drafts[-1].pending_head
        await sessions.commit(fence, list(pending.part_refs), replace=pending.replace)
    await sessions.release(binding.binding_id, run_id)
    return drafts


async def test_i30_turns_show_continuity_out_of_what_was_committed(process, sessions):
    durable = blueprint_pb2.THREAD_PERSISTENCE_DURABLE
    async with client_of(process, persistence=durable, state_address=sessions.sessions.facade) as client:
        await turn_of(sessions, client, "talk-1", "my name is Kim")
        await turn_of(sessions, client, "talk-2", "lost", commit=False)
        await turn_of(sessions, client, "talk-3", script({"state": "bytes of its own"}))
        said = text_of(await turn_of(sessions, client, "talk-4", "who am I?"))
        assert "turn 2" in said
        assert "my name is Kim" in said
        assert len((await sessions.find("talk")).head.part_refs) == 1


async def test_a_state_that_cannot_be_saved_is_said_to_be_uncertain(process, sessions):
    durable = blueprint_pb2.THREAD_PERSISTENCE_DURABLE
    async with client_of(process, persistence=durable, state_address=sessions.sessions.facade) as client:
        drafts = await turn_of(sessions, client, "unsaved-1", "hello", token="no token of this run")
        failed = drafts[-1].payload.run_failed
        assert (failed.category, failed.code) == (error_pb2.ERROR_CATEGORY_PERSISTENCE, "thread_durability_uncertain")
        assert failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE


async def test_i10_a_write_during_a_takeover_is_made_again_for_the_next_executor(process, sessions):
    limits = runtime_pb2.RuntimeLimits(max_unacked_events=1)
    durable = blueprint_pb2.THREAD_PERSISTENCE_DURABLE
    async with client_of(process, persistence=durable, state_address=sessions.sessions.facade, limits=limits) as client:
        binding = await sessions.granted("r1", "takeover")
        fence = fence_of(binding)
        client.binding_id, client.epoch = binding.binding_id, binding.epoch
        client.runtime_generation = binding.runtime_generation
        await client.create()
        given = client.input(script({"text": "hi"}, {"state": "x"}), token=token_of(fence))
        call = client.start(fence, given)
        await call.read()
        # From here on the facade refuses what the run writes under its first executor.
        await sessions.claim(binding.binding_id, "r1", 2)
        await client.ack(fence, 1)
        fence.run_generation = 2
        drafts = await client.follow(client.attach(fence, 1), fence)
        assert kinds(drafts) == ["run.completed"]
        assert len(drafts[0].pending_head.part_refs) == 2


async def test_i34_a_call_that_its_facade_refuses_for_good_is_not_made_again(process):
    await check_patience(partial(client_of, process))


async def test_no_constraint_of_the_contracts_can_be_broken(process):
    async with client_of(process) as client:
        await client.create()
        found, count = await taken(client)
        assert not found
        assert count > 250
        await client.turn("hello")
