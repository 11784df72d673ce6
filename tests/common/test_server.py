"""Start and stop of a service in a process of its own: I32, I33, readiness, sockets."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.common.caller import Capability
from services.common.channels import Peer, connect
from services.common.errors import ConfigurationError, HarnessError, Reason
from services.common.sockets import prepare_unix_socket
from tests.common.conftest import TOKENS, Keys, ToyProcess
from tests.common.toy import CANARY, SERVICE, Ask, ToyStub

MakeProcess = Callable[..., ToyProcess]


def health_stub(peer: Peer) -> Any:
    stub: Any = health_pb2_grpc.HealthStub
    return stub(peer.channel)


async def test_readiness_is_told_once_the_service_serves(toy_process: MakeProcess) -> None:
    toy = toy_process()
    ready = json.loads(await toy.start())
    assert ready == {"service": "toy", "pid": toy.pid, "address": toy.address}
    assert stat.S_IMODE(os.stat(toy.socket).st_mode) == 0o600
    peer = connect(toy.address, TOKENS[0])
    answer = await peer.call(ToyStub(peer.channel).one, Ask(do="echo"), subject="alice")
    assert answer.subject == "alice"
    stub = health_stub(peer)
    for name in ("", SERVICE):
        assert (
            await stub.Check(health_pb2.HealthCheckRequest(service=name))
        ).status == health_pb2.HealthCheckResponse.SERVING
    reflection_stub: Any = reflection_pb2_grpc.ServerReflectionStub
    lists = reflection_stub(peer.channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    assert SERVICE in {service.name async for answer in lists for service in answer.list_services_response.service}
    await peer.close()


async def test_port_0_is_told_with_its_real_number(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_LISTEN="127.0.0.1:0", HARNESS_METRICS_LISTEN="127.0.0.1:0")
    address = json.loads(await toy.start())["address"]
    assert not address.endswith(":0")
    peer = connect(address, TOKENS[0])
    assert (await peer.call(ToyStub(peer.channel).one, Ask(do="echo"))).text == "echo"
    await peer.close()


async def test_metrics_are_served_where_the_setting_says(toy_process: MakeProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    toy = toy_process(HARNESS_METRICS_LISTEN=f"127.0.0.1:{port}")
    assert await toy.start()
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read())
    assert b"harness_rpc_seconds" in text


async def test_i33_sigterm_finishes_what_runs_and_exits_0(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_SHUTDOWN_GRACE_SECONDS="3600")
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    watch = health_stub(peer).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    chat = ToyStub(peer.channel).chat(metadata=peer.metadata(), timeout=60)
    await chat.write(Ask(do="echo"))
    assert (await chat.read()).text == "echo"
    os.kill(toy.pid, signal.SIGTERM)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    # The end of the watch is the beginning of the drain: from here nothing new is served, and what runs goes on.
    assert (await watch.code()).name == "UNAVAILABLE"
    await chat.write(Ask(do="echo"))
    assert (await chat.read()).text == "echo"
    await chat.done_writing()
    assert (await chat.code()).name == "OK"
    assert await toy.wait() == 0
    assert toy.journal() == ["start", "stop", "closed"]
    await peer.close()


async def test_i33_what_does_not_end_is_cut_off_after_the_grace(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_SHUTDOWN_GRACE_SECONDS="0.2")
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    call = ToyStub(peer.channel).many(Ask(do="hang_second", count=2), metadata=peer.metadata(), timeout=60)
    await call.read()
    os.kill(toy.pid, signal.SIGTERM)
    assert await toy.wait() == 0
    assert toy.journal()[-1] == "closed"
    await peer.close()


async def test_i33_a_thread_that_is_left_over_does_not_hold_the_end(toy_process: MakeProcess) -> None:
    toy = toy_process(TOY_THREAD="1")
    await toy.start()
    os.kill(toy.pid, signal.SIGTERM)
    async with asyncio.timeout(90):
        assert await toy.wait() == 0
    assert toy.journal()[-1] == "closed"


async def test_i33_a_second_signal_stops_at_once(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_SHUTDOWN_GRACE_SECONDS="3600")
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    stub = health_stub(peer)
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    call = ToyStub(peer.channel).many(Ask(do="hang_second", count=2), metadata=peer.metadata(), timeout=60)
    await call.read()
    os.kill(toy.pid, signal.SIGTERM)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    os.kill(toy.pid, signal.SIGTERM)
    assert await toy.wait() == 0
    assert toy.journal()[-1] == "closed"
    await peer.close()


async def test_i22_a_failing_step_of_a_stop_is_logged_without_its_text(toy_process: MakeProcess) -> None:
    toy = toy_process()
    await toy.start()
    os.kill(toy.pid, signal.SIGINT)
    assert await toy.wait() == 0
    assert "stop_step_failed" in toy.log_text()
    assert CANARY not in toy.log_text()


async def test_i32_bad_settings_refuse_the_start_by_name(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_LISTEN="nowhere")
    assert await toy.start() == b""
    assert await toy.wait() == 2
    assert toy.log_text().startswith("configuration error: HARNESS_LISTEN: expected unix:/path or host:port")
    assert not (toy.folder / "data").exists()


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("HARNESS_METRICS_LISTEN", "unix:/x", "needs host:port"),
        ("HARNESS_METRICS_LISTEN", "192.0.2.1:0", "cannot listen on"),
        ("HARNESS_LISTEN", "192.0.2.1:1", "cannot listen on"),
        ("HARNESS_DATA_DIR", "/dev/null/x", "cannot make the folder"),
        ("HARNESS_LISTEN", "unix:/dev/null/x.sock", "cannot make the folder"),
        ("HARNESS_READY_FD", "99", "not an open file descriptor"),
        ("HARNESS_DIE_WITH_PARENT", "yes", "neither 1 nor a process id"),
    ],
)
async def test_i32_a_setting_that_does_not_work_here_is_named(
    toy_process: MakeProcess, name: str, value: str, part: str
) -> None:
    toy = toy_process(**{name: value})
    await toy.start()
    assert await toy.wait() == 2
    line = next(line for line in toy.log_text().splitlines() if line.startswith("configuration error: "))
    assert name in line
    assert part in line
    assert "Traceback" not in toy.log_text()


async def test_i32_a_port_in_use_is_named_and_not_shared(toy_process: MakeProcess) -> None:
    first = toy_process(HARNESS_LISTEN="127.0.0.1:0")
    address = json.loads(await first.start())["address"]
    second = toy_process(HARNESS_LISTEN=address)
    assert await second.start() == b""
    assert await second.wait() == 2
    assert f"HARNESS_LISTEN: cannot listen on {address}" in second.log_text()
    assert second.journal() == ["start", "closed"]  # the first's start, and all that the second ever did


async def test_i32_a_failing_start_leaves_nothing_and_says_so(toy_process: MakeProcess) -> None:
    toy = toy_process(TOY_FAIL="start")
    assert await toy.start() == b""
    assert await toy.wait() == 1
    assert toy.journal() == ["start", "closed"]
    assert "toy stopped by an unexpected error" in toy.log_text()
    assert CANARY not in toy.log_text()


async def test_a_socket_left_by_a_killed_process_is_replaced(toy_process: MakeProcess) -> None:
    toy = toy_process()
    await toy.start()
    os.kill(toy.pid, signal.SIGKILL)
    await toy.wait()
    assert toy.socket.exists()
    assert await toy.start()


async def test_a_socket_somebody_listens_on_is_left_alone(toy_process: MakeProcess) -> None:
    first, second = toy_process(), toy_process()
    await first.start()
    assert await second.start() == b""
    assert await second.wait() == 2
    assert "another process listens" in second.log_text()
    peer = connect(first.address, TOKENS[0])
    assert (await peer.call(ToyStub(peer.channel).one, Ask(do="echo"))).text == "echo"
    await peer.close()


def test_a_file_in_the_place_of_a_socket_is_left_alone(folder: Path) -> None:
    path = folder / "file"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match=r"HARNESS_LISTEN: .* is not a socket"):
        prepare_unix_socket(path, "HARNESS_LISTEN")
    assert path.read_text() == "precious"


PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "tests.common.toy_main"], pass_fds=[int(os.environ["HARNESS_READY_FD"])])
sys.stdin.read()
"""


@pytest.mark.parametrize("value", ["1", "pid"])
async def test_a_process_dies_with_its_killed_parent(toy_process: MakeProcess, folder: Path, value: str) -> None:
    toy = toy_process()
    reading, writing = os.pipe()
    code = (
        PARENT
        if value == "1"
        else PARENT.replace("child =", 'os.environ["HARNESS_DIE_WITH_PARENT"] = str(os.getpid())\nchild =')
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        env={**toy.environment, "HARNESS_READY_FD": str(writing), "HARNESS_DIE_WITH_PARENT": "1"},
        pass_fds=[writing],
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        pid = json.loads(await asyncio.to_thread(ready.readline))["pid"]
    child = os.pidfd_open(pid)
    parent.kill()
    await parent.wait()
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(child, gone.set)
    await gone.wait()  # readable once the process has ended
    asyncio.get_running_loop().remove_reader(child)
    os.close(child)


async def test_a_parent_that_died_too_early_is_noticed(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_DIE_WITH_PARENT="999999999")
    assert await toy.start() == b""
    assert await toy.wait() == 1


async def test_a_facade_takes_capabilities_alone_and_has_no_health(toy_process: MakeProcess, keys: Keys) -> None:
    toy = toy_process(TOY_FACADE_KEY=keys.signer.public_key_pem)
    facade = json.loads(await toy.start())["facade"]
    assert stat.S_IMODE(os.stat(facade.removeprefix("unix:")).st_mode) == 0o666
    assert stat.S_IMODE(os.stat(toy.socket).st_mode) == 0o600
    token = keys.signer.sign(Capability(SERVICE, "bnd_1", 1, 1, "run_7"), deadline_at=4e9)
    inside, outside = connect(facade, TOKENS[0]), connect(toy.address)
    answer = await inside.call(ToyStub(inside.channel).one, Ask(do="echo"), credential=token)
    assert answer.subject == "run_7"
    for peer, credential in ((inside, None), (outside, token)):
        with pytest.raises(HarnessError) as caught:
            await peer.call(ToyStub(peer.channel).one, Ask(do="echo"), credential=credential)
        assert caught.value.reason is Reason.UNAUTHENTICATED
    with pytest.raises(HarnessError) as caught:
        await inside.call(health_stub(inside).Check, health_pb2.HealthCheckRequest(), credential=token)
    assert caught.value.reason is Reason.UNIMPLEMENTED
    await inside.close()
    await outside.close()


async def test_i34_a_service_says_itself_that_it_cannot_serve_now(toy_process: MakeProcess) -> None:
    toy = toy_process(TOY_AWAY="1")
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    watch = health_stub(peer).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
        pass
    watch.cancel()
    await peer.close()


async def test_i35_one_call_too_many_is_refused_as_capacity(toy_process: MakeProcess) -> None:
    toy = toy_process(HARNESS_MAX_CONCURRENT_RPCS="1")
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    stub = ToyStub(peer.channel)
    call = stub.many(Ask(do="hang_second", count=2), metadata=peer.metadata(), timeout=60)
    await call.read()
    with pytest.raises(HarnessError) as caught:
        await peer.call(stub.one, Ask(do="echo"))
    assert (caught.value.reason, caught.value.retryable) == (Reason.CAPACITY, True)
    call.cancel()
    await peer.close()
