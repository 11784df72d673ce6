"""The real service, where an operator names a harness or a role of it: opt-in, for it costs money and changes an account."""

from __future__ import annotations

import os
import uuid

import pytest

from adapters.agentcore.profile import read_profile
from adapters.agentcore.provisioning.fleet import Fleet
from conformance.certification import Options, certify
from tests.adapters.processes import AdapterProcess
from tests.conformance.live_agentcore import ARN, ROLE
from tests.support.adapters import folder

__all__ = ["folder"]
pytestmark = pytest.mark.timeout(900)


@pytest.mark.skipif(
    ARN not in os.environ, reason=f"asks the real service and costs money: set {ARN} to the ARN of a managed harness"
)
async def test_the_real_service_is_understood(folder):
    # The standard chain of credentials, as it is for whoever runs this.
    credentials = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    host = AdapterProcess(folder, module="adapters.agentcore", environment=credentials)
    await host.start()
    try:
        options = Options(host.address, driver="tests.conformance.live_agentcore:LiveAgentCoreDriver", sections=(5,))
        made = await certify(options, lambda _: None)
    finally:
        await host.stop()
    assert {each.case.id: each.reason for each in made.cases if each.result == "failed"} == {}
    known = {each.case.id for each in made.cases if each.result == "passed"}
    assert {"R5.1/multi-turn", "R5.7/lost-runtime"} <= known


@pytest.mark.skipif(
    ROLE not in os.environ, reason=f"makes and removes a harness: set {ROLE} to an execution role, and AWS_REGION"
)
async def test_the_real_control_plane_makes_finds_and_removes_a_harness():
    deployment = f"try-{uuid.uuid4().hex[:12]}"
    per_agent = {"deployment": deployment, "execution_role_arn": os.environ[ROLE]}
    profile = read_profile({"mode": "per_agent", "region": os.environ["AWS_REGION"], "per_agent": per_agent})
    fleet, another = Fleet(), Fleet()
    try:
        arn = await fleet.locator(profile).arn_for("one")
        assert await another.locator(profile).known_arn("one") == arn
        assert (await another.reconcile(profile, ["one"])).created == 0
        removed = await another.reconcile(profile, [], ["one"])
        assert (removed.removed, removed.faults) == (1, ())
    finally:
        # Idempotent; whatever failed above, nothing of the trial is left but what the service is still making.
        await fleet.reconcile(profile, [], ["one"])
        await fleet.close()
        await another.close()
