"""What is missing for Claude, the package, the host's key or a model endpoint's, is a line in the list of harnesses, and keeps nothing from starting."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.common.capability_token import CapabilitySigner, generate_private_key
from tests.adapters.processes import AdapterProcess
from tests.catalog.conftest import Start
from tests.catalog.processes import AVAILABLE, TOKEN, UNAVAILABLE, end, operator, spawn, until

PACKAGE = "is not well (dependency): The package claude-agent-sdk is not installed"
KEY = "Works in part (configuration): There is no credential for the model: set ANTHROPIC_API_KEY_FILE to a file"
KEY_FILE = "Works in part (configuration): The credential cannot be read: ANTHROPIC_API_KEY_FILE: No such file"
ENDPOINT = "Works in part (model_endpoint): The model endpoint of inside has no credential"
AWAY = "Works in part (model_endpoint): The model egress cannot be reached"
ELSEWHERE = {"ANTHROPIC_API_KEY_FILE": "-"}
SANDBOXED = {
    "id": "inside",
    "placement": "sandbox_pod",
    "model_endpoint": "claude",
    "sandbox": {"worker_module": "adapters.claude_agent_sdk", "memory_mib": 1024},
}
Run = Callable[..., Awaitable[Any]]


@pytest.fixture
async def run(folder: Path) -> AsyncIterator[Run]:
    """Starts an adapter process."""
    started: list[AdapterProcess] = []

    async def start_one(module: str, environment: Mapping[str, str]) -> AdapterProcess:
        process = AdapterProcess(folder / "run", module=module, environment=dict(environment), name="claude")
        started.append(process)
        return await process.start()

    yield start_one
    for process in started:
        await process.stop()


def _file(folder: Path) -> dict[str, Any]:
    profiles = [{"id": "default", "placement": "in_process"}, SANDBOXED]
    adapter = {"harness_id": "claude_agent_sdk", "address": "unix:run/claude.sock", "profiles": profiles}
    return operator(
        adapter, model_endpoints=[{"id": "claude", "kind": "anthropic", "credential_file": f"{folder}/key"}]
    )


@pytest.mark.parametrize(
    ("module", "environment", "availability", "reason"),
    [
        ("tests.adapters.claude.without_sdk", ELSEWHERE, UNAVAILABLE, PACKAGE),
        ("adapters.claude_agent_sdk", {}, AVAILABLE, KEY),
        ("adapters.claude_agent_sdk", {"ANTHROPIC_API_KEY_FILE": "/nowhere/key"}, AVAILABLE, KEY_FILE),
        ("adapters.claude_agent_sdk", ELSEWHERE, AVAILABLE, ""),
    ],
    ids=["package", "key", "key-file", "elsewhere"],
)
async def test_what_the_host_lacks_stands_in_the_list_of_harnesses(
    folder: Path,
    start: Start,
    run: Run,
    module: str,
    environment: Mapping[str, str],
    availability: int,
    reason: str,
) -> None:
    client, _ = await asyncio.gather(start(_file(folder), adapter_poll_seconds=0.2), run(module, environment))
    listed = await until(
        lambda: client.harness("claude_agent_sdk"),
        lambda harness: harness.availability == availability and reason in harness.reason,
        90,
    )
    assert bool(listed.reason) == bool(reason)
    assert "nowhere" not in listed.reason


async def test_a_model_endpoint_without_its_key_stands_in_the_list_until_the_key_comes(
    folder: Path, start: Start, run: Run
) -> None:
    """Degraded, not away: other profiles work. The egress reads the file; the list names the profile and nothing of where the key is."""
    socket = folder / "m" / "model.sock"
    egress, line = await spawn(
        [sys.executable, "-m", "services.egress"], _egress(folder, socket), folder / "egress.log"
    )
    try:
        assert line, (folder / "egress.log").read_text()
        settings = {"adapter_poll_seconds": 0.2, "model_egress_address": f"unix:{socket}"}
        client, _ = await asyncio.gather(start(_file(folder), **settings), run("adapters.claude_agent_sdk", ELSEWHERE))

        async def listed(reason: str) -> Any:
            return await until(
                lambda: client.harness("claude_agent_sdk"),
                lambda harness: (
                    harness.availability == AVAILABLE
                    and harness.reason.startswith(reason)
                    and bool(reason) == bool(harness.reason)
                ),
                90,
            )

        assert "/key" not in (await listed(ENDPOINT)).reason
        health = await client.health("claude_agent_sdk")
        (check,) = (one for one in health.report.checks if one.name == "model_endpoint")
        assert (health.report.status, check.status) == (2, 2)
        (folder / "key").write_text("sk-test")
        await listed("")
        await end(egress)
        await listed(AWAY)
    finally:
        await end(egress)


def _egress(folder: Path, socket: Path) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    config = folder / "egress.json"
    config.write_text(json.dumps(_file(folder)))
    return keep | {
        "HARNESS_SERVICE_TOKENS": TOKEN,
        "HARNESS_CONFIG_FILE": str(config),
        "HARNESS_FACADE_LISTEN": f"unix:{socket}",
        "HARNESS_SESSIONS_ADDRESS": f"unix:{folder}/none.sock",
        "HARNESS_CAPABILITY_VERIFY_KEYS": CapabilitySigner(generate_private_key()).public_key_pem,
        "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
    }
