"""The pages on writing an adapter in Go and in TypeScript are true: their commands and code are taken from them, run, and certified."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.mesh import HARNESS, poll_until

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "how-to"
MADE_HERE = ("gen", "dist", "node_modules")
NODE_REQUIRED = "HARNESS_TEST_NODE_REQUIRED"

# Both compile a program, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


@pytest.fixture
def root() -> Generator[Path]:
    """As much of the repository as the pages use, to be written into. Not below a test's own folder: the path of a socket has to be short."""
    folder = Path(tempfile.mkdtemp(prefix="hw-"))
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copyfile(ROOT / "buf.yaml", folder / "buf.yaml")
    for contracts in ("proto", "build/third_party"):  # buf follows no links
        shutil.copytree(ROOT / contracts, folder / contracts)
    for name in ("go", "node"):
        shutil.copytree(ROOT / "adapters" / name, folder / "adapters" / name, ignore=shutil.ignore_patterns(*MADE_HERE))
    yield folder
    shutil.rmtree(folder)


def run(commands: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-eu", "-c", commands],
        cwd=folder,
        env={**os.environ, "npm_config_prefer_offline": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def shell(commands: str, folder: Path) -> None:
    done = run(commands, folder)
    assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}"


@contextmanager
def serving(command: str, folder: Path, address: Path) -> Generator[None]:
    """What the page serves it with, until the end of the block."""
    with (folder / "served.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-eu", "-c", f"exec {command}"], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        poll_until(lambda: takes_connections(address) or process.poll() is not None, "the adapter to serve")
        assert process.poll() is None, (folder / "served.log").read_text()
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def takes_connections(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


def follow(page: str, language: str, file: str, adapter: str, root: Path) -> None:
    """The page, from its first command to the certificate; only the address is another one."""
    take, build_and_serve, certify = blocks(page, "sh")
    (code,) = blocks(page, language)
    named, address = f"/tmp/{adapter.replace('_', '-')}.sock", root / "p.sock"
    assert named in build_and_serve
    assert named in certify
    *take, install = take.strip().splitlines(keepends=True)
    folder = root / "adapters" / adapter
    shell("".join(take), root)
    if install.strip() != "npm ci":
        shell(install, folder)
    elif (fetched := run(install, folder)).returncode != 0:
        assert not os.environ.get(NODE_REQUIRED), fetched.stdout[-4000:]
        pytest.skip(f"the packages of adapters/node could not be installed: {fetched.stdout[-1000:]}")
    (folder / file).write_text(code)
    *build, serve = build_and_serve.strip().splitlines()
    shell("\n".join(build), folder)
    with serving(serve.replace(named, str(address)), folder, address):
        command = certify.replace(named, str(address)).split()
        assert command[0] == "harness"
        done = subprocess.run([HARNESS, *command[1:]], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"CERTIFIED  {adapter} 0.1.0, contract 1" in done.stdout + done.stderr
    assert (root / "build" / "certification" / adapter / "certification.json").exists()
    (operator,) = blocks(page, "yaml")
    (entry,) = yaml.safe_load(operator)["adapters"]
    assert (entry["harness_id"], entry["address"]) == (adapter, f"unix:{named}")


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go on the path")
def test_the_page_on_go_leads_to_a_certified_adapter(root: Path) -> None:
    follow("write-an-adapter-in-go.md", "go", "internal/parrot/parrot.go", "parrot_go", root)


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on the path")
def test_the_page_on_typescript_leads_to_a_certified_adapter(root: Path) -> None:
    follow("write-an-adapter-in-typescript.md", "ts", "src/harness/harness.ts", "parrot_node", root)
