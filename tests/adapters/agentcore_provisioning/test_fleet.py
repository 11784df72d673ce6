"""The setting `per_agent` of a profile, and how faults of the control plane are told."""

import pytest

from adapters.agentcore.profile import read_profile
from adapters.agentcore.provisioning.fleet import Fleet, read_per_agent
from adapters.agentcore.provisioning.provisioner import SILENT_ROUNDS
from adapters.sdk.errors import ConfigurationError, HarnessError, ThrottledError, UnavailableError
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore, Fault

ROLE = f"arn:aws:iam::{ACCOUNT}:role/approved"


@pytest.fixture
def standin(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDDUMMY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    with AgentCore() as standin:
        yield standin


@pytest.fixture
async def fleet():
    fleet = Fleet()
    yield fleet
    await fleet.close()


def _profile(url="http://127.0.0.1:1", *, region=REGION, model="model-a", **per_agent):
    asked = {"deployment": "d", "execution_role_arn": ROLE, **per_agent}
    where = {"region": region} if region else {}
    return read_profile({"mode": "per_agent", **where, "endpoint_url": url, "model": model, "per_agent": asked})


async def test_a_turn_gets_the_harness_of_its_agent_and_a_round_removes_what_is_over(standin, fleet):
    profile = _profile(standin.url)
    locator = fleet.locator(profile)
    one, two = await locator.arn_for("one"), await locator.arn_for("two")
    assert one != two
    assert await fleet.locator(profile).arn_for("one") == one
    assert len(standin.control.harnesses) == 2
    assert (await fleet.reconcile(profile, ["one"])).unlisted == ("two",)
    made = await fleet.reconcile(profile, ["one"], ["two"])
    assert (made.created, made.removed) == (0, 1)
    assert "arn:" not in repr(locator)


async def test_a_model_of_the_profile_is_the_harness_s_own(standin, fleet):
    await fleet.locator(_profile(standin.url)).arn_for("one")
    (kept,) = standin.control.harnesses.values()
    assert kept.document["model"] == {"bedrockModelConfig": {"modelId": "model-a"}}


async def test_a_region_of_the_environment_is_one_as_in_turns(standin, fleet, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_REGION", REGION)
    profile = _profile(standin.url, region="")
    assert (await fleet.locator(profile).arn_for("one")).startswith("arn:")


async def test_profiles_that_share_a_deployment_remove_nothing_of_each_other(standin, fleet):
    one, two = _profile(standin.url), _profile(standin.url, model="model-b")
    await fleet.reconcile(one, ["a"])
    await fleet.reconcile(two, ["b"])
    # As the catalog sees it, `b` has left the first and has no conversation there.
    assert (await fleet.reconcile(one, ["a"], ["b"])).removed == 0
    assert len(standin.control.harnesses) == 2
    # Once it has left the other one too, it goes.
    await fleet.reconcile(two, [])
    assert (await fleet.reconcile(one, ["a"], ["b"])).removed == 1


@pytest.mark.parametrize(
    ("fault", "told", "kind", "code"),
    [
        ("ThrottlingException", "ThrottlingException", ThrottledError, "rate_limited"),
        ("AccessDeniedException", "AccessDeniedException", ConfigurationError, "harness_not_provisioned"),
        ("InternalServerException", "InternalServerException", UnavailableError, "harness_not_provisioned"),
        ("canary of a proxy", "unknown", UnavailableError, "harness_not_provisioned"),
    ],
)
async def test_i22_faults_are_classified_and_say_nothing_of_the_operators(standin, fleet, fault, told, kind, code):
    # As often as the client tries.
    standin.control.faults.extend([Fault("ListHarnesses", fault)] * 6)
    profile = _profile(standin.url)
    for asked in (lambda: fleet.locator(profile).arn_for("one"), lambda: fleet.reconcile(profile, [])):
        with pytest.raises(HarnessError) as caught:
            await asked()
        assert (type(caught.value), caught.value.code) == (kind, code)
        assert caught.value.provider_code == told
        assert "arn:" not in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [("deployment", "no spaces!"), ("deployment", 5), ("execution_role_arn", "admin"), ("extra", "x")],
)
def test_i32_a_wrong_setting_is_named_and_its_value_is_not(key, value):
    with pytest.raises(ConfigurationError, match=f"per_agent.{key}") as caught:
        read_per_agent(_profile(**{key: value}))
    assert str(value) not in caught.value.message or key == "extra"


async def test_a_profile_that_was_edited_is_no_other_profile_for_long(standin, fleet):
    before, after = _profile(standin.url), _profile(standin.url, execution_role_arn=f"{ROLE}-later")
    await fleet.reconcile(before, ["one"])
    for kept in standin.control.harnesses.values():
        kept.document["status"] = "READY"
    removed = [(await fleet.reconcile(after, [], ["one"])).removed for _ in range(SILENT_ROUNDS + 1)]
    # Its former self holds no rounds any more; while it might, what it named stays.
    assert removed == [0] * SILENT_ROUNDS + [1]
