"""The stand-in of the service, and credentials for it."""

import pytest

from tests.adapters.agentcore.rig import rigged
from tests.standins.agentcore import AgentCore


@pytest.fixture(scope="module")
def served_standin():
    with AgentCore() as standin:
        yield standin


@pytest.fixture
def standin(served_standin, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDCANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    served_standin.forget()
    served_standin.control.harnesses.clear()
    served_standin.control.calls.clear()
    served_standin.control.faults.clear()
    served_standin.control._made = 0
    return served_standin


@pytest.fixture
async def rig(standin):
    async with rigged(standin) as made:
        yield made
