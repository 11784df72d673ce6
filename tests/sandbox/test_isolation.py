"""What a strict sandbox shows of itself from inside (worker protocol, "Isolation every backend must show")."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from harness.sandbox.v1 import lease_pb2
from services.common.errors import HarnessError, Reason
from services.sandbox.backends.local.cgroups import Cgroups, find_cgroups
from tests.sandbox.mesh import (
    CANARY,
    Mesh,
    all_gone,
    control_groups,
    descendants,
    exists,
    inside,
    needs_strict,
    of_process,
    running_mesh,
    uid_of,
)


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh() as running:
        yield running


async def acquired(mesh: Mesh, binding: str = "bnd_a") -> lease_pb2.Lease:
    lease = (await mesh.acquire(binding, profile="strict")).lease
    assert lease.isolation == "strict"
    return lease


@needs_strict
async def test_only_unix_sockets_can_be_made(mesh: Mesh) -> None:
    code = """
import socket
result = {}
for name, family in (('inet', 2), ('inet6', 10), ('netlink', 16), ('packet', 17), ('vsock', 40), ('alg', 38)):
    try:
        socket.socket(family, socket.SOCK_RAW if name in ('netlink', 'packet') else socket.SOCK_STREAM)
        result[name] = 0
    except OSError as error:
        result[name] = error.errno
a, b = socket.socketpair(socket.AF_UNIX)
a.send(b'x')
result['unix'] = b.recv(1).decode()
result['devices'] = [line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]]
"""
    found = await inside(await acquired(mesh), code)
    assert found.pop("unix") == "x"
    assert found.pop("devices") == ["lo"]
    assert set(found.values()) == {errno.EAFNOSUPPORT}


@needs_strict
async def test_i28_no_secret_of_the_mesh_is_found_inside(mesh: Mesh) -> None:
    (mesh.folder / "data").mkdir(exist_ok=True)
    (mesh.folder / "data" / "canary.txt").write_text(CANARY)
    lease = await acquired(mesh)
    code = f"""
canary = {CANARY[:6]!r} + {CANARY[6:]!r}
result = {{'names': sorted(os.environ), 'read': 0, 'found': [], 'folder': os.path.exists({str(mesh.folder)!r})}}
for pid in [name for name in os.listdir('/proc') if name.isdigit()]:
    for name in ('environ', 'cmdline', 'mountinfo', 'status'):
        data = open(f'/proc/{{pid}}/{{name}}', 'rb').read()
        result['read'] += 1
        if canary.encode() in data:
            result['found'].append(name)
for top in ('/etc', '/run', '/tmp', '/workspace', '/root', '/home', '/var'):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path) < 1 << 16 and canary.encode() in open(path, 'rb').read():
                result['found'].append(path)
"""
    found = await inside(lease, code)
    assert set(found["names"]) <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR"}  # fmt: skip
    assert found["read"] >= 4
    assert found["found"] == []
    assert not found["folder"]
    for pid in descendants(mesh.keepers()[lease.lease_id]):
        for name in ("environ", "cmdline"):
            assert CANARY.encode() not in of_process(pid, name)
    assert CANARY not in (mesh.root / lease.lease_id / "worker.log").read_text()


@needs_strict
async def test_i28_no_file_of_the_machine_but_code_and_libraries_is_seen(mesh: Mesh) -> None:
    code = """
import importlib.util, sys
def listing(path):
    return sorted(os.listdir(path)) if os.path.isdir(path) else None
import adapters
result = {
    'top': listing('/'), 'etc': listing('/etc'), 'home': listing('/home'), 'run': listing('/run'),
    'harness': listing('/run/harness'), 'root': listing('/root'), 'tmp': listing('/tmp'),
    'data': os.path.exists('/var'), 'shadow': os.path.exists('/etc/shadow'),
    'services': importlib.util.find_spec('services') is not None,
    'project': listing(os.path.dirname(os.path.dirname(adapters.__file__))),
    'place': adapters.__file__,
}
"""
    found = await inside(await acquired(mesh), code)
    assert set(found["etc"]) <= {"passwd", "group", "ld.so.cache", "alternatives"}
    assert found["home"] is None
    assert found["run"] == ["harness"]
    assert found["harness"] == ["w"]
    assert found["root"] is None or not any(name.startswith((".ssh", ".bash", ".config")) for name in found["root"])
    assert found["tmp"] == []
    assert not found["data"]
    assert not found["shadow"]
    assert not found["services"]
    # Not where it is outside: a checkout may be below a folder that a sandbox has of its own, as /tmp.
    assert found["place"].startswith("/opt/product/")
    assert set(found["project"]) <= {"adapters", "gen", "tests", ".venv"}


@needs_strict
async def test_only_its_own_processes_are_seen(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    code = f"""
result = {{'pids': [int(name) for name in os.listdir('/proc') if name.isdigit()], 'self': os.getpid(), 'parent': os.getppid()}}
try:
    os.kill({mesh.keepers()[lease.lease_id]}, 0)
    result['kill'] = 0
except OSError as error:
    result['kill'] = error.errno
"""
    assert await inside(lease, code) == {"pids": [1], "self": 1, "parent": 0, "kill": errno.ESRCH}


REFUSED = {
    "unshare user": ("unshare", (272, 0x1000_0000), errno.EPERM),
    "unshare network": ("unshare", (272, 0x4000_0000), errno.EPERM),
    "clone user": ("clone", (56, 0x1000_0000 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
    "clone3": ("clone3", (435, 0, 0), errno.ENOSYS),
    "mount": ("mount", (165, 0, 0, 0, 0, 0), errno.EPERM),
    "ptrace": ("ptrace", (101, 0, 0, 0, 0), errno.EPERM),
    "keyctl": ("keyctl", (250, 0, 0, 0), errno.EPERM),
    "bpf": ("bpf", (321, 0, 0, 0), errno.EPERM),
    "perf_event_open": ("perf", (298, 0, 0, -1, -1, 0), errno.EPERM),
    "userfaultfd": ("userfaultfd", (323, 1), errno.EPERM),
    "io_uring_setup": ("io_uring", (425, 1, 0), errno.ENOSYS),
    "kexec_load": ("kexec", (246, 0, 0, 0, 0), errno.EPERM),
    "init_module": ("module", (175, 0, 0, 0), errno.EPERM),
    "ioctl TIOCSTI": ("ioctl", (16, 0, 0x5412, 0), errno.EPERM),
    "x32 getpid": ("x32", (0x4000_0000 | 39,), None),
}


@needs_strict
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86_64")
async def test_dangerous_system_calls_are_refused(mesh: Mesh) -> None:
    calls = {name: call for name, (_, call, number) in REFUSED.items() if number is not None}
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = {{}}
for name, call in {calls!r}.items():
    ctypes.set_errno(0)
    answer = libc.syscall(*[ctypes.c_long(part) for part in call])
    if name.startswith('clone') and answer == 0:
        os._exit(0)
    result[name] = ctypes.get_errno() if answer == -1 else 0
"""
    found = await inside(await acquired(mesh), code)
    assert found == {name: number for name, (_, _, number) in REFUSED.items() if number is not None}


@needs_strict
async def test_nothing_can_be_written_but_bounded_places(mesh: Mesh) -> None:
    code = """
import errno
result = {'writable': [], 'mounts': {}}
for folder in ('/', '/usr', '/etc', '/run', '/run/harness', '/run/harness/w', '/dev', '/root', '/workspace', '/tmp', '/dev/shm'):
    try:
        open(os.path.join(folder, 'x'), 'w').close()
        result['writable'].append(folder)
        os.unlink(os.path.join(folder, 'x'))
    except OSError:
        pass
def fill(folder):
    written = 0
    try:
        with open(folder + '/fill', 'wb') as file:
            while written < 200:
                file.write(bytes(1 << 20)); file.flush(); written += 1
    except OSError as error:
        os.unlink(folder + '/fill')
        return [written, error.errno]
    return [written, 0]
result['workspace'] = fill('/workspace')
result['shm'] = fill('/dev/shm')
"""
    found = await inside(await acquired(mesh), code)
    assert found["writable"] == ["/workspace", "/tmp", "/dev/shm"]
    assert found["workspace"] == [8, errno.ENOSPC]
    assert found["shm"] == [16, errno.ENOSPC]


@needs_strict
async def test_no_privilege_is_left(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    status = await inside(lease, "result = open('/proc/self/status').read()")
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {facts[name].strip("0\t ") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert facts["Groups"].strip() == ""
    assert 0 not in {int(uid) for uid in facts["Uid"].split()}
    assert await inside(lease, "import resource\nresult = resource.getrlimit(resource.RLIMIT_CORE)") == [0, 0]


@needs_strict
async def test_i26_two_sandboxes_share_neither_user_nor_files(mesh: Mesh) -> None:
    one, two = await asyncio.gather(acquired(mesh, "bnd_1"), acquired(mesh, "bnd_2"))
    uids = []
    for lease in (one, two):
        worker = max(descendants(mesh.keepers()[lease.lease_id]))
        uids.append(uid_of(worker))
    assert len(set(uids)) == 2
    assert min(uids) >= 200_000
    await inside(one, "open('/workspace/mine', 'w').write('x')\nresult = 1")
    assert await inside(two, "result = os.listdir('/workspace') + os.listdir('/tmp')") == []
    socket = two.runtime_ref.address.removeprefix("unix:")
    assert not await inside(one, f"result = os.path.exists({socket!r})")


@needs_strict
async def test_a_fork_bomb_is_contained_and_ended(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    bomb = (
        "import subprocess, sys\n"
        "result = subprocess.Popen([sys.executable, '-S', '-c', "
        "'import os\\nwhile True:\\n try:\\n  os.fork()\\n except OSError:\\n  print(1, flush=True)\\n  break\\n"
        "import signal\\nsignal.pause()'], stdout=subprocess.PIPE).stdout.read(1).decode()"
    )
    assert await inside(lease, bomb) == "1"  # it ran into the limit
    keeper = mesh.keepers()[lease.lease_id]
    everything = descendants(keeper)
    assert 3 < len(everything) <= 48 + 1
    pidfds = [os.pidfd_open(pid) for pid in everything if exists(pid)]
    # It cannot even be asked to shut down any more, perhaps: then it is killed.
    begun = time.monotonic()
    await mesh.release("bnd_a")
    await all_gone(pidfds)
    assert time.monotonic() - begun < 10


@needs_strict
async def test_a_memory_hog_is_killed_and_its_lease_says_so(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    with pytest.raises(grpc.aio.AioRpcError):
        await inside(lease, "result = len(b'x' * (400 << 20))")
    lost = await mesh.in_state("bnd_a", lease_pb2.LEASE_STATE_LOST)
    assert lost.reason == "SANDBOX_LIMIT: memory"
    assert (await mesh.acquire("bnd_a", 2, profile="strict")).created


@needs_strict
async def test_i29_a_killed_service_and_its_restart_leave_no_strict_sandbox_and_no_group(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    await acquired(mesh, "bnd_b")
    await mesh.stop(signal.SIGKILL)
    await mesh.start()
    assert not (await mesh.acquire("bnd_a", profile="strict")).created
    pidfds = [os.pidfd_open(pid) for keeper in mesh.keepers().values() for pid in descendants(keeper)]
    assert len(pidfds) >= 6
    await mesh.release("bnd_a")
    await mesh.release("bnd_b")
    await all_gone(pidfds)
    assert not list(mesh.root.glob("lse_*"))
    assert control_groups(lease.lease_id) == []


@needs_strict
async def test_i27_a_killed_keeper_takes_its_strict_sandbox_along(mesh: Mesh) -> None:
    lease = await acquired(mesh)
    keeper = mesh.keepers()[lease.lease_id]
    pidfds = [os.pidfd_open(pid) for pid in descendants(keeper)]
    os.kill(keeper, signal.SIGKILL)
    await all_gone(pidfds)
    await mesh.in_state("bnd_a", lease_pb2.LEASE_STATE_LOST)


class Echo:
    """A facade stand-in at a unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"facade")
            writer.close()

        self.server = await asyncio.start_unix_server(answer, self.path)
        self.path.chmod(0o666)

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        self.path.unlink(missing_ok=True)


ASK_FACADE = """
import socket
address = worker.bound.context.facades[0].address
with socket.socket(socket.AF_UNIX) as client:
    client.connect(address.removeprefix('unix:'))
    result = [address, client.recv(16).decode(), sorted(os.listdir('/run/harness'))]
"""


@needs_strict
async def test_a_facade_is_reached_also_after_it_restarted(mesh: Mesh) -> None:
    folder = mesh.folder / "facades"
    folder.mkdir(mode=0o711)
    facade = Echo(folder / "state.sock")
    await facade.start()
    facades = {"state": f"unix:{facade.path}"}
    lease = (await mesh.acquire("bnd_a", profile="strict", facades=facades)).lease
    expected = ["unix:/run/harness/state/state.sock", "facade", ["state", "w"]]
    assert await inside(lease, ASK_FACADE) == expected
    await facade.stop()
    await facade.start()
    assert await inside(lease, ASK_FACADE) == expected
    await facade.stop()


@needs_strict
async def test_i28_a_facade_beside_other_sockets_is_let_in_alone(mesh: Mesh) -> None:
    folder = mesh.folder / "facades"
    folder.mkdir()
    folder.chmod(0o711)
    (folder / "secret").write_text(CANARY)
    facade = Echo(folder / "state.sock")
    await facade.start()
    lease = (await mesh.acquire("bnd_a", profile="strict", facades={"state": f"unix:{facade.path}"})).lease
    assert await inside(lease, ASK_FACADE) == ["unix:/run/harness/state.sock", "facade", ["state.sock", "w"]]
    await facade.stop()


@needs_strict
async def test_a_facade_on_the_network_is_refused_for_a_strict_sandbox(mesh: Mesh) -> None:
    with pytest.raises(HarnessError) as refused:
        await mesh.acquire("bnd_a", profile="strict", facades={"state": "127.0.0.1:1"})
    assert refused.value.reason == Reason.CONFIGURATION_INVALID
    assert not list(mesh.root.glob("lse_*"))


async def test_strict_is_refused_where_bubblewrap_is_missing_never_weakened() -> None:
    async with running_mesh(HARNESS_SANDBOX_BWRAP="/nonexistent/bwrap") as mesh:
        with pytest.raises(HarnessError) as refused:
            await mesh.acquire("bnd_a", profile="strict")
        assert refused.value.reason == Reason.SANDBOX_NOT_READY
        assert not refused.value.retryable
        assert "bubblewrap" in refused.value.message
        assert not list(mesh.root.glob("lse_*"))
        assert "strict_isolation_unavailable" in mesh.log
        assert (await mesh.acquire("bnd_b", profile="none")).created


@needs_strict
async def test_strict_is_refused_where_the_trial_fails(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'no permission to make namespaces' >&2\nexit 1\n")
    program.chmod(0o755)
    async with running_mesh(HARNESS_SANDBOX_BWRAP=str(program)) as mesh:
        with pytest.raises(HarnessError) as refused:
            await mesh.acquire("bnd_a", profile="strict")
        assert "trial" in refused.value.message
        assert not list(mesh.root.glob("lse_*"))


def test_control_groups_are_found_or_said_why_not() -> None:
    found = find_cgroups(f"harness-sandboxes-tests-{os.getpid()}")
    if isinstance(found, Cgroups):
        found.close()
    else:
        assert "control groups" in found
