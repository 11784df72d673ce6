"""What is missing for AgentCore, the package, credentials or a region, is a line in the list of harnesses, and keeps nothing from starting."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.adapters.processes import AdapterProcess
from tests.catalog.conftest import Start
from tests.catalog.processes import AVAILABLE, UNAVAILABLE, operator, until
from tests.standins.agentcore import ACCOUNT, REGION

HARNESS = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/agent-0123456789"
# Of the machine's own settings for AWS nothing is seen.
BARE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
KEYS = {**BARE, "AWS_ACCESS_KEY_ID": "AKIDDUMMY", "AWS_SECRET_ACCESS_KEY": "dummy"}
PACKAGE = "is not well (dependency): The package boto3 is not installed: install it, or the extra"
CREDENTIALS = "is not well (configuration): The standard chain of AWS finds no credentials for this process"
NO_REGION = "Works in part (configuration): The process has no AWS_REGION"


@pytest.fixture
async def processes(folder: Path) -> AsyncIterator[list[AdapterProcess]]:
    started: list[AdapterProcess] = []
    yield started
    for process in started:
        await process.stop()


@pytest.mark.parametrize(
    ("module", "environment", "availability", "reason"),
    [
        ("tests.adapters.agentcore.without_sdk", KEYS, UNAVAILABLE, PACKAGE),
        ("adapters.agentcore", BARE, UNAVAILABLE, CREDENTIALS),
        ("adapters.agentcore", KEYS, AVAILABLE, NO_REGION),
        ("adapters.agentcore", {**KEYS, "AWS_REGION": REGION}, AVAILABLE, ""),
    ],
    ids=["package", "credentials", "region", "whole"],
)
async def test_what_agentcore_lacks_stands_in_the_list_of_harnesses(
    folder: Path,
    start: Start,
    processes: list[AdapterProcess],
    module: str,
    environment: Mapping[str, str],
    availability: int,
    reason: str,
) -> None:
    process = AdapterProcess(folder / "run", module=module, environment=dict(environment), name="agentcore")
    processes.append(process)
    settings = {"region": REGION, "harness_arn": HARNESS}
    profile = {"id": "default", "placement": "provider_managed", "settings": settings}
    entry = {"harness_id": "agentcore", "address": "unix:run/agentcore.sock", "profiles": [profile]}
    # Beside each other: either may come first.
    client, _ = await asyncio.gather(start(operator(entry), adapter_poll_seconds=0.2), process.start())
    listed = await until(
        lambda: client.harness("agentcore"),
        lambda harness: harness.availability == availability and reason in harness.reason,
        90,
    )
    assert bool(listed.reason) == bool(reason)
    assert "arn:" not in listed.reason
