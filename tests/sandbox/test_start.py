"""Bad settings stop the service with one clear message; identities of processes are exact."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from services.common.errors import ConfigurationError, HarnessError, Reason
from services.sandbox.backends.local.backend import LocalBackend, LocalOptions
from services.sandbox.backends.local.identity import boot_id, open_process, start_time
from services.sandbox.backends.local.seccomp import filter_program, supported
from services.sandbox.backends.local.uids import Uids
from tests.sandbox.mesh import control_groups


async def run_service(folder: Path, **settings: str) -> tuple[int, str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HARNESS_LISTEN": f"unix:{folder}/s.sock",
        "HARNESS_DATA_DIR": str(folder),
        "HARNESS_SERVICE_TOKENS": "sandbox-test-token-0001",
        "HARNESS_IDENTITY_KEY": "identity-key-for-tests",
        "HARNESS_CATALOG_ADDRESS": "unix:/nonexistent/catalog.sock",
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.sandbox", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HARNESS_CATALOG_ADDRESS": ""}, "HARNESS_CATALOG_ADDRESS"),
        ({"HARNESS_SANDBOX_DIR": "/tmp/" + "long/" * 20}, "HARNESS_SANDBOX_DIR"),
        ({"HARNESS_LIFELINE_FD": "999"}, "HARNESS_LIFELINE_FD"),
        ({"HARNESS_STORE_URL": "nonsense://x"}, "HARNESS_STORE_URL"),
        ({"HARNESS_MAX_SANDBOXES": "0"}, "HARNESS_MAX_SANDBOXES"),
        ({"HARNESS_SANDBOX_LIMITS": "none"}, "HARNESS_SANDBOX_LIMITS"),
    ],
)
async def test_i32_a_wrong_setting_stops_the_start_and_is_named(settings: dict[str, str], named: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hs-") as folder:  # short: a socket has to fit
        status, errors = await run_service(Path(folder), **settings)
    assert status == 2, errors
    assert named in errors


async def test_i32_a_folder_serves_one_process() -> None:
    with tempfile.TemporaryDirectory(prefix="hs-") as folder:
        options = LocalOptions(root=Path(folder), bwrap="/nonexistent")
        backend = await LocalBackend.open(options)
        with pytest.raises(ConfigurationError, match="HARNESS_SANDBOX_DIR: another process"):
            await LocalBackend.open(options)
        await backend.close()
        # Nor is a control group left behind.
        assert control_groups(f"harness-sandboxes-{backend.place.removeprefix('local-')}") == []
        await (await LocalBackend.open(options)).close()


def test_i29_a_process_is_recognised_by_pid_boot_and_start_time_together() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        handle = {"pid": process.pid, "start_time": start_time(process.pid), "boot_id": boot_id()}
        pidfd = open_process(handle)
        assert pidfd is not None
        os.close(pidfd)
        assert open_process({**handle, "start_time": int(handle["start_time"] or 0) + 1}) is None
        assert open_process({**handle, "boot_id": "another"}) is None
    finally:
        process.communicate(b"\n")
    assert open_process(handle) is None


def test_i29_an_ended_process_that_nobody_collected_yet_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    handle = {"pid": process.pid, "start_time": start_time(process.pid), "boot_id": boot_id()}
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert open_process(handle) is None
    process.wait()


def test_i26_a_user_id_is_given_once_while_held_also_to_another_mesh(tmp_path: Path) -> None:
    one, two = Uids(70_000, 2, tmp_path / "locks"), Uids(70_000, 2, tmp_path / "locks")
    first, first_lock = one.take()
    second, second_lock = two.take()
    assert {first, second} == {70_000, 70_001}
    with pytest.raises(HarnessError) as full:
        one.take()
    assert full.value.reason == Reason.SANDBOX_CAPACITY
    os.close(first_lock)
    again, again_lock = two.take()
    assert again == first
    os.close(again_lock)
    os.close(second_lock)


def test_the_system_call_filter_exists_for_known_architectures_only() -> None:
    for machine in ("x86_64", "aarch64"):
        program = filter_program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096  # what the kernel takes
    assert not supported("riscv64")
    with pytest.raises(ValueError, match="riscv64"):
        filter_program("riscv64")
