"""Adapter processes: readiness, both placements, stop, kill, exit codes, sockets, tokens (I20, I23, I32, I33)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.serve import serve_adapter, serve_worker
from adapters.sdk.testing import connected, kinds
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import payload_pb2
from harness.worker.v1 import worker_service_pb2 as worker_pb2
from tests.adapters.processes import children_of
from tests.adapters.scripted import until
from tests.adapters.status import drained, refused

EPHEMERAL = blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
FAULTS = {"allow_faults": True}


async def test_a_process_announces_itself_and_serves_health_and_reflection(start):
    process = await start()
    assert process.ready["address"] == process.address
    assert process.ready["pid"] == process.pid
    assert process.socket_mode == 0o600
    async with connected(process.address) as client:
        answer = await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert answer.incarnation == process.ready["incarnation"]
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "harness.runtime.v1.RuntimeService", "harness.adapter.v1.AdapterService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        reflecting: Any = cast("Any", reflection_pb2_grpc).ServerReflectionStub(client.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = reflecting.ServerReflectionInfo(iter([request]))
        listed = (await answers.read()).list_services_response.service
        assert "harness.adapter.v1.AdapterService" in {service.name for service in listed}
        answers.cancel()
    assert await process.stop() == 0
    assert process.socket_mode is None


async def test_two_incarnations_differ(start):
    first, second = await start(), await start()
    assert first.ready["incarnation"] != second.ready["incarnation"]


async def test_a_worker_is_bound_once_for_life_and_ends_on_shutdown(start):
    process = await start("--worker", "--socket-mode", "0666")
    assert process.socket_mode == 0o666
    async with connected(process.address, worker=True, persistence=EPHEMERAL) as client:
        readiness = await client.sandbox.GetReadiness(worker_pb2.GetReadinessRequest())
        assert (readiness.ready, readiness.bound, readiness.harness_id) == (True, False, "reference")
        assert list(readiness.protocol_versions) == [1]
        bind = worker_pb2.BindRequest(fence=client.fence(), harness_id="another", context=client.context())
        await refused(client.sandbox.Bind(bind), "FAILED_PRECONDITION", "WORKER_MISMATCH")
        await client.create()
        await client.create()
        changes: list[dict[str, Any]] = [{"binding_id": "b2"}, {"epoch": 2}, {"runtime_generation": 2}]
        for change in changes:
            other = worker_pb2.BindRequest(
                fence=client.fence(**change), harness_id="reference", context=client.context()
            )
            await refused(client.sandbox.Bind(other), "FAILED_PRECONDITION", "STALE_LEASE")
        different = worker_pb2.BindRequest(fence=client.fence(), harness_id="reference", context=client.context())
        different.context.agent_version = 2
        await refused(client.sandbox.Bind(different), "FAILED_PRECONDITION", "STALE_LEASE")
        assert (await client.sandbox.GetReadiness(worker_pb2.GetReadinessRequest())).bound
        assert kinds(await client.turn('{"n": 2}')) == ["content.delta"] * 2 + ["run.completed"]
        # The adapter host's service is not there.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        wrong = worker_pb2.ShutdownRequest(fence=client.fence(epoch=2))
        await refused(client.sandbox.Shutdown(wrong), "FAILED_PRECONDITION", "STALE_LEASE")
        await client.sandbox.Shutdown(worker_pb2.ShutdownRequest(fence=client.fence()))
    assert await process.wait() == 0


async def test_i20_shutdown_of_a_worker_ends_the_run_at_work(start):
    process = await start("--worker", environment={"HARNESS_SHUTDOWN_GRACE_SECONDS": "1"})
    async with connected(process.address, worker=True, persistence=EPHEMERAL) as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input('{"n": 1, "delay": 3600}'))
        await until_known(client)
        await client.sandbox.Shutdown(worker_pb2.ShutdownRequest(fence=client.fence()))
        drafts = (await call.read()).batch.drafts
        assert drafts[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SHUTDOWN
    assert await process.wait() == 0


async def until_known(client) -> None:
    """Until the run of turn 1 has come in."""
    while True:
        try:
            await client.ack(client.fence(1, "r1"), 0)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND  # noqa: PT017 - anything else is a failure
        else:
            return


async def test_i33_sigterm_lets_a_run_finish_takes_no_other_and_exits_0(start):
    process = await start()
    async with connected(process.address, persistence=EPHEMERAL) as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input('{"n": 40, "rate": 100}'))
        first = await call.read()
        os.kill(process.pid, signal.SIGTERM)
        rest = await client.follow(call)
        assert len(first.batch.drafts) + len(rest) == 41
        assert kinds(rest)[-1] == "run.completed"
    assert await process.wait() == 0


async def test_i33_after_the_grace_a_run_is_cancelled_for_shutdown(start):
    process = await start(environment={"HARNESS_SHUTDOWN_GRACE_SECONDS": "0.2"})
    async with connected(process.address, persistence=EPHEMERAL) as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input('{"n": 100, "rate": 1}'))
        await call.read()
        os.kill(process.pid, signal.SIGTERM)
        rest = await client.follow(call)
        assert kinds(rest)[-1] == "run.cancelled"
        assert rest[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SHUTDOWN
    assert await process.wait() == 0


@pytest.mark.parametrize("way", ["exit", "kill"])
async def test_a_process_that_dies_ends_its_streams_and_its_successor_starts_nothing_of_it(start, way):
    process = await start()
    async with connected(process.address, persistence=EPHEMERAL, profile_settings=FAULTS) as client:
        await client.create()
        fence = client.fence(1, "r1")
        ending = {"exit": 9} if way == "exit" else {"hang": True}
        call = client.start(fence, client.input(json.dumps({"script": [{"text": "a"}, {"sleep": 0.05}, ending]})))
        await call.read()
        if way == "kill":
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await process.wait() == (9 if way == "exit" else -signal.SIGKILL)
    # The socket is still there; the next process takes it over and is another incarnation.
    await process.start()
    async with connected(process.address, persistence=EPHEMERAL) as client:
        old = fence
        await refused(drained(client.attach(old, 0, "dead-incarnation")), "FAILED_PRECONDITION", "incarnation_mismatch")
        await client.create()
        assert kinds(await client.turn('{"n": 1}'))[-1] == "run.completed"


async def test_i20_no_child_process_is_left(start):
    process = await start()
    async with connected(process.address, persistence=EPHEMERAL, profile_settings=FAULTS) as client:
        assert kinds(await client.turn('{"script": [{"probe": {}}]}')) == ["content.delta", "run.completed"]
        assert children_of(process.pid) == []
        await client.cleanup()
    assert await process.stop() == 0


async def test_a_process_dies_with_its_parent(folder):
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'adapters.reference', '--listen', sys.argv[1]],"
        " pass_fds=[int(os.environ['HARNESS_READY_FD'])])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    reading, writing = os.pipe()
    environment = {**os.environ, "HARNESS_DIE_WITH_PARENT": "1", "HARNESS_READY_FD": str(writing)}
    parent = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", code, f"unix:{folder}/x.sock"],
        env=environment,
        pass_fds=[writing],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready = json.loads(await asyncio.to_thread(pipe.readline))
    parent.kill()
    await parent.wait()

    def gone() -> bool:
        try:
            # An orphan may stay as a zombie where nobody reaps: dead all the same.
            return Path(f"/proc/{ready['pid']}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    await until(gone)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ([], {}, "--listen"),
        (["--listen", "nonsense"], {}, "'nonsense'"),
        (["--listen", "0.0.0.0:0"], {}, "HARNESS_ADAPTER_TOKEN"),
        (["--listen", "0.0.0.0:0"], {"HARNESS_ADAPTER_ALLOW_ANONYMOUS": "1"}, "HARNESS_ADAPTER_TOKEN"),
        (["--listen", "127.0.0.1:0"], {}, "HARNESS_ADAPTER_TOKEN"),
        (["--listen", "localhost:0", "--worker"], {}, "HARNESS_ADAPTER_TOKEN"),
        (["--listen", "[::1]:0"], {"HARNESS_ADAPTER_ALLOW_ANONYMOUS": "0"}, "HARNESS_ADAPTER_TOKEN"),
        (["--listen", "127.0.0.1:0"], {"HARNESS_ADAPTER_ALLOW_ANONYMOUS": "yes"}, "HARNESS_ADAPTER_ALLOW_ANONYMOUS: "),
        (["--listen", "unix:/nowhere/at/all.sock"], {}, "--listen"),
        (["--listen", "127.0.0.1:0", "--socket-mode", "999"], {}, "--socket-mode"),
        (["--listen", "127.0.0.1:0"], {"HARNESS_ADAPTER_MAX_RUNS": "many"}, "HARNESS_ADAPTER_MAX_RUNS"),
        (
            ["--listen", "127.0.0.1:0"],
            {"HARNESS_ADAPTER_MAX_BUFFERED_BYTES": "1"},
            "HARNESS_ADAPTER_MAX_BUFFERED_BYTES",
        ),
        (["--listen", "127.0.0.1:0"], {"HARNESS_READY_FD": "977"}, "HARNESS_READY_FD"),
        (["--listen", "127.0.0.1:0"], {"HARNESS_DIE_WITH_PARENT": "yes"}, "HARNESS_DIE_WITH_PARENT"),
        (["--listen", "127.0.0.1:0"], {"HARNESS_ADAPTER_TOKEN_FILE": "/nowhere"}, "HARNESS_ADAPTER_TOKEN_FILE"),
    ],
)
async def test_i32_a_wrong_setting_stops_the_process_with_one_message_that_names_it(arguments, environment, words):
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "adapters.reference", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert words in stderr.decode()
    assert "Traceback" not in stderr.decode()


async def test_a_token_is_asked_of_every_call(start):
    process = await start(environment={"HARNESS_ADAPTER_TOKEN": "right"})
    async with connected(process.address, token="wrong") as client:
        await refused(
            client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest()), "UNAUTHENTICATED", "unauthenticated"
        )
        client.incarnation = "x"
        call = client.start(client.fence(1, "r"), client.input("x"))
        await refused(drained(call), "UNAUTHENTICATED", "unauthenticated")
    async with connected(process.address, token="right", persistence=EPHEMERAL) as client:
        assert kinds(await client.turn('{"n": 1}'))[-1] == "run.completed"


async def test_a_host_on_loopback_serves_those_who_have_its_token(start):
    process = await start(environment={"HARNESS_ADAPTER_TOKEN": "right"}, listen="127.0.0.1:0")
    async with connected(process.ready["address"]) as client:
        request = adapter_pb2.GetDescriptorRequest()
        await refused(client.adapter.GetDescriptor(request), "UNAUTHENTICATED", "unauthenticated")
    async with connected(process.ready["address"], token="right", persistence=EPHEMERAL) as client:
        assert kinds(await client.turn('{"n": 1}'))[-1] == "run.completed"
    assert "anonymous_callers_allowed" not in process.log.read_text()


async def test_i32_anonymous_callers_are_let_in_on_loopback_when_asked_for_and_the_log_warns(start):
    process = await start(environment={"HARNESS_ADAPTER_ALLOW_ANONYMOUS": "1"}, listen="127.0.0.1:0")
    async with connected(process.ready["address"], persistence=EPHEMERAL) as client:
        assert kinds(await client.turn('{"n": 1}'))[-1] == "run.completed"
    entries = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    (warning,) = [entry for entry in entries if entry["event"] == "anonymous_callers_allowed"]
    assert warning["level"] == "warning"


async def test_i32_an_adapter_served_in_a_process_of_ones_own_needs_a_token_on_tcp_too():
    for serve in (serve_adapter, serve_worker):
        with pytest.raises(ConfigurationError, match="HARNESS_ADAPTER_TOKEN"):
            await serve(ReferenceAdapter, listen="127.0.0.1:0")


async def test_a_living_socket_is_not_taken_over(start):
    process = await start()
    second = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "adapters.reference", "--listen", process.address], stderr=subprocess.PIPE
    )
    _, stderr = await second.communicate()
    assert second.returncode == 2
    assert "another process listens" in stderr.decode()
    async with connected(process.address) as client:
        await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())


async def test_i22_no_canary_reaches_the_log(start):
    process = await start()
    async with connected(process.address, persistence=EPHEMERAL, profile_settings=FAULTS) as client:
        await client.turn("canary-message", system_prompt="canary-prompt", native_session_id="canary-native")
        await client.turn('{"script": [{"text": "canary-text"}, {"raise": "canary-raise"}]}')
        await client.turn(
            '{"script": [{"emit": {"warning": {"code": "c", "message": "m", "details": {"canary-key": 1}}}}]}'
        )
    await process.stop()
    log = process.log.read_text()
    assert "run_failed" in log
    assert "canary" not in log
