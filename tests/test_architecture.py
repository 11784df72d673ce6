"""The import contracts of pyproject.toml: each is shown to fail on the import that it is there for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("catalog", "sessions", "runs", "sandbox", "egress", "gateway")
PACKAGES = (
    "services",
    "services.common",
    *(f"services.{name}" for name in SERVICES),
    "adapters",
    "adapters.sdk",
    "adapters.reference",
    "adapters.betterproto",
    "adapters.agentcore",
    "adapters.claude_agent_sdk",
    "cli",
    "conformance",
)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """The packages of the project, empty, under its own import contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "build_tools", tmp_path / "build_tools", ignore=shutil.ignore_patterns("__pycache__"))
    for package in PACKAGES:
        _write(tmp_path, f"{package}.__init__", "")
    return tmp_path


def test_the_empty_layout_keeps_every_contract(layout: Path) -> None:
    assert _broken(layout) == []


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("services.runs.executor", "import services.sessions.slot", "services never import each other"),
        ("services.common.server", "import services.catalog", "services.common imports no service"),
        ("services.catalog.offers", "import adapters.sdk", "services import no adapter"),
        ("services.catalog.offers", "import adapters.sdk.lifecycle", "services import no adapter"),
        ("services.runs.executor", "import cli", "services import no adapter"),
        ("adapters.reference.steps", "import services.common", "adapters know nothing of the services"),
        ("adapters.sdk.serve", "import adapters.reference", "adapters stand on the SDK"),
        ("adapters.unlisted", "", "adapters stand on the SDK"),
        ("cli.up", "import services.catalog", "the command starts services"),
        ("cli.up", "import adapters.reference", "the command starts services"),
        ("conformance.plane", "import adapters.sdk", "the certification kit speaks the contracts"),
        ("conformance.plane", "import services.common", "the certification kit speaks the contracts"),
        ("adapters.sdk.serve", "import conformance", "services and adapters do not need the certification kit"),
        ("services.runs.executor", "import grpc", "domain modules hold no wire"),
        ("services.runs.executor", "from redis.asyncio import Redis", "domain modules hold no wire"),
        ("services.sessions.slot", "import sqlite3", "domain modules hold no wire"),
        ("services.sessions.deep.down", "from pymongo import errors", "domain modules hold no wire"),
        ("services.sessions.slot", "import services.sessions.service", "domain modules hold no wire"),
        ("services.runs.executor", "from harness.run.v1 import (\n    run_pb2_grpc,\n)", "domain modules hold no wire"),
        ("services.runs.store.records", "import grpc", "stores know no proto service"),
        (
            "services.common.store.port",
            "from harness.run.v1 import run_pb2_grpc as stubs",
            "stores know no proto service",
        ),
    ],
)
def test_a_forbidden_import_breaks_its_contract(layout: Path, module: str, line: str, contract: str) -> None:
    _write(layout, "services.sessions.slot", "")
    _write(layout, "services.sessions.service", "")
    _write(layout, "adapters.sdk.lifecycle", "")
    _write(layout, module, line)
    assert any(name.startswith(contract) for name in _broken(layout))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "services.runs.service",
            "import grpc\nfrom harness.run.v1 import run_pb2_grpc\nimport services.runs.executor",
        ),
        ("services.runs.store", "import sqlite3"),
        ("services.runs.log.sqlite", "import sqlite3"),
        ("services.runs.bus", "import redis"),
        ("services.runs.__main__", "import services.runs.service"),
        ("services.runs.executor", "import services.runs.store\nfrom harness.run.v1 import run_pb2"),
        ("services.runs.executor", "import services.common\nimport adapters.sdk.lifecycle"),
        ("services.common.server", "import grpc"),
        ("adapters.reference.steps", "import adapters.sdk\nfrom harness.runtime.v1 import runtime_pb2_grpc"),
        ("cli.up", "import services.common"),
    ],
)
def test_an_allowed_import_keeps_every_contract(layout: Path, module: str, line: str) -> None:
    _write(layout, "services.runs.executor", "")
    _write(layout, "services.runs.service", "")
    _write(layout, "services.runs.store", "import sqlite3")
    _write(layout, "adapters.sdk.lifecycle", "")
    _write(layout, module, line)
    assert _broken(layout) == []


def _write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(folder).parents:
        package = folder / parent / "__init__.py"
        if parent != Path() and not package.exists():
            package.write_text("")
    if (path / "__init__.py").exists():
        path = path / "__init__"
    elif path.with_suffix(".py").exists():
        path.with_suffix(".py").unlink()
    path.with_suffix(".py").write_text(f"{text}\n")


def _broken(folder: Path) -> list[str]:
    program = Path(sys.executable).with_name("lint-imports")
    # -c: the program's own folder is not the project here, and the one that is must be found before the installed one.
    start = (
        "import sys; sys.path.insert(0, ''); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    assert program.exists()
    finished = subprocess.run(
        [sys.executable, "-c", start, "--no-logo", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = finished.stdout.splitlines()
    broken = [line.removesuffix(" BROKEN") for line in lines if line.endswith(" BROKEN")]
    assert finished.returncode == (1 if broken else 0), finished.stdout + finished.stderr
    assert any(" kept, " in line for line in lines), finished.stdout + finished.stderr
    return broken
