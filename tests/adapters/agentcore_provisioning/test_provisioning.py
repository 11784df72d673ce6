"""One harness for each agent, against the stand-in of the control plane: made, kept, removed, and never doubled."""

import asyncio

import pytest

from adapters.agentcore.provisioning.control import ControlFault, open_control
from adapters.agentcore.provisioning.plan import Found, plan
from adapters.agentcore.provisioning.provisioner import MAX_CHANGES, Provisioner
from adapters.agentcore.provisioning.wanted import AGENT_TAG, DEPLOYMENT_TAG, SPEC_TAG, Spec, Wanted
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore, Fault

ROLE = f"arn:aws:iam::{ACCOUNT}:role/approved"
OTHER_ROLE = f"arn:aws:iam::{ACCOUNT}:role/approved-later"


@pytest.fixture
def standin(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDDUMMY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with AgentCore() as standin:
        yield standin


@pytest.fixture
async def replicas(standin):
    """Two of them, as in two processes; they share a client, which takes longer to make than a test to run."""
    control = open_control(REGION, standin.url)
    made = [Provisioner("d", lambda: control, pause=0) for _ in range(2)]
    yield made
    for each in made:
        await each.close()


def _wanted(agent, role=ROLE, model="model-a"):
    return Wanted("d", agent, Spec(role, model))


def _settle(standin):
    """What is under way in the control plane is over."""
    for harness_id in list(standin.control.harnesses):
        kept = standin.control.harnesses[harness_id]
        if kept.document["status"] == "DELETING":
            del standin.control.harnesses[harness_id]
        else:
            kept.document["status"] = "READY"


def _there(standin):
    return {kept.document["harnessName"]: kept for kept in standin.control.harnesses.values()}


async def test_harnesses_are_made_with_role_model_and_tags_and_then_left_alone(standin, replicas):
    one, two = _wanted("one"), _wanted("two", model="")
    made = await replicas[0].reconcile([one, two])
    assert (made.created, made.updated, made.removed, made.left, made.faults) == (2, 0, 0, 0, ())
    kept = _there(standin)[one.name]
    assert kept.tags == one.tags
    assert kept.document["executionRoleArn"] == ROLE
    assert kept.document["model"] == {"bedrockModelConfig": {"modelId": "model-a"}}
    assert _there(standin)[two.name].document["model"] == {"bedrockModelConfig": {"modelId": "default"}}
    # Idempotent, while they are being made as well as afterwards.
    for _ in range(2):
        standin.control.calls.clear()
        again = await replicas[1].reconcile([two, one])
        assert (again.created, again.updated, again.removed) == (0, 0, 0)
        assert set(standin.control.calls) <= {"ListHarnesses", "ListTagsForResource"}
        _settle(standin)
    # Tags that were read are not asked for again: a round of agents that stay costs pages of the listing alone.
    standin.control.calls.clear()
    await replicas[1].reconcile([one, two])
    assert standin.control.calls == ["ListHarnesses"]


async def test_tags_are_read_anew_before_anything_is_changed(standin, replicas):
    await replicas[0].reconcile([_wanted("one")])
    _settle(standin)
    await replicas[0].reconcile([_wanted("one")])
    # Meanwhile somebody took it over.
    _there(standin)[_wanted("one").name].tags[DEPLOYMENT_TAG] = "another"
    for wanted, ended in (([], ["one"]), ([_wanted("one", role=OTHER_ROLE)], [])):
        made = await replicas[0].reconcile(wanted, ended)
        assert (made.updated, made.removed) == (0, 0)
    assert len(standin.control.harnesses) == 1


async def test_a_changed_spec_is_an_update_and_is_made_again_if_its_tag_was_lost(standin, replicas):
    await replicas[0].reconcile([_wanted("one")])
    _settle(standin)
    later = _wanted("one", role=OTHER_ROLE)
    standin.control.faults.append(Fault("TagResource", "InternalServerException"))
    # The control plane's own retries do not count here: boto3 tries a server error again by itself.
    standin.control.faults.extend([Fault("TagResource", "InternalServerException")] * 2)
    lost = await replicas[0].reconcile([later])
    assert lost.faults == ("InternalServerException",)
    _settle(standin)
    kept = _there(standin)[later.name]
    assert (kept.document["executionRoleArn"], kept.tags[SPEC_TAG]) == (OTHER_ROLE, _wanted("one").spec_digest)
    assert (await replicas[1].reconcile([later])).updated == 1
    _settle(standin)
    assert kept.tags[SPEC_TAG] == later.spec_digest
    assert (await replicas[0].reconcile([later])).updated == 0


async def test_only_what_is_ours_and_was_named_as_ended_is_removed(standin, replicas):
    await replicas[0].reconcile([_wanted("one"), _wanted("two"), _wanted("four")])
    _settle(standin)
    stranger = _wanted("three")
    standin.control.add(stranger.name, tags={DEPLOYMENT_TAG: "another", AGENT_TAG: "three"})
    standin.control.add("by_hand")
    # What is not named may have conversations, so it stays, and is told of.
    made = await replicas[0].reconcile([_wanted("one")])
    assert (made.removed, made.unlisted) == (0, ("four", "two"))
    # An agent that lives is not removed, whoever says so.
    assert (await replicas[0].reconcile([_wanted("one")], ["two", "three", "one", "nobody"])).removed == 1
    assert (await replicas[0].reconcile([_wanted("one")])).unlisted == ("four",)
    _settle(standin)
    assert set(_there(standin)) == {_wanted("one").name, _wanted("four").name, stranger.name, "by_hand"}
    # A name of ours that somebody else has is never used.
    with pytest.raises(ControlFault, match="harness_of_another_owner"):
        await replicas[0].arn(stranger)


async def test_a_create_whose_answer_was_lost_is_found_again(standin, replicas):
    standin.control.faults.append(Fault("CreateHarness"))
    await replicas[0].reconcile([_wanted("one")])
    assert len(standin.control.harnesses) == 1
    _settle(standin)
    assert (await replicas[0].reconcile([_wanted("one")])).created == 0
    assert len(standin.control.harnesses) == 1


async def test_two_replicas_at_once_make_each_harness_once(standin, replicas):
    wanted = [_wanted(f"agent-{number}") for number in range(8)]
    rounds = await asyncio.gather(*(each.reconcile(wanted) for each in replicas))
    assert sum(each.created for each in rounds) == 8
    assert [each.faults for each in rounds] == [(), ()]
    assert set(_there(standin)) == {each.name for each in wanted}


async def test_a_turn_that_comes_first_makes_the_harness_once_and_waits_until_it_is_ready(standin, replicas):
    wanted = _wanted("one")
    arns = await asyncio.gather(*(each.arn(wanted) for each in replicas for _ in range(5)))
    (kept,) = standin.control.harnesses.values()
    assert set(arns) == {kept.document["arn"]}
    assert kept.document["status"] == "READY"
    assert standin.control.calls.count("CreateHarness") <= len(replicas)
    # Known from now on: a turn asks the control plane nothing.
    standin.control.calls.clear()
    assert await replicas[0].arn(wanted) == arns[0]
    assert standin.control.calls == []
    replicas[0].forget(wanted)
    assert await replicas[0].arn(wanted) == arns[0]
    assert standin.control.calls != []


async def test_a_round_makes_it_known_to_turns(standin, replicas):
    wanted = _wanted("one")
    await replicas[1].reconcile([wanted])
    _settle(standin)
    await replicas[0].reconcile([wanted])
    standin.control.calls.clear()
    assert (await replicas[0].arn(wanted)).endswith(next(iter(standin.control.harnesses)))
    assert standin.control.calls == []


async def test_one_who_gives_up_stops_nobody_else(standin, replicas):
    standin.control.looks = 3
    wanted = _wanted("one")
    first, second = (asyncio.ensure_future(replicas[0].arn(wanted)) for _ in range(2))
    await asyncio.to_thread(standin.wait, lambda: "CreateHarness" in standin.control.calls)
    first.cancel()
    assert (await second).startswith("arn:")
    assert first.cancelled()


async def test_a_failed_harness_is_told_removed_and_made_anew(standin, replicas):
    await replicas[0].reconcile([_wanted("one")])
    (kept,) = standin.control.harnesses.values()
    kept.document["status"] = "CREATE_FAILED"
    with pytest.raises(ControlFault, match="harness_create_failed"):
        await replicas[0].arn(_wanted("one"))
    assert (await replicas[0].reconcile([_wanted("one")])).removed == 1
    _settle(standin)
    assert (await replicas[0].reconcile([_wanted("one")])).created == 1


async def test_throttling_ends_a_round_and_another_fault_only_its_change(standin, replicas):
    wanted = [_wanted(f"agent-{number}") for number in range(4)]
    standin.control.faults.append(Fault("CreateHarness", "AccessDeniedException"))
    made = await replicas[0].reconcile(wanted)
    assert (made.created, made.faults, made.left) == (3, ("AccessDeniedException",), 0)
    standin.control.faults.extend([Fault("CreateHarness", "ServiceQuotaExceededException")])
    made = await replicas[0].reconcile([*wanted, _wanted("more")])
    assert (made.created, made.left, made.faults) == (0, 2, ("ServiceQuotaExceededException",))


async def test_a_round_is_bounded_and_the_next_goes_on(standin, replicas):
    standin.control.page = 20
    wanted = [_wanted(f"agent-{number}") for number in range(MAX_CHANGES + 5)]
    made = await replicas[0].reconcile(wanted)
    assert (made.created, made.left) == (MAX_CHANGES, 5)
    assert (await replicas[0].reconcile(wanted)).created == 5
    assert len(standin.control.harnesses) == MAX_CHANGES + 5


async def test_i18_a_fault_says_nothing_of_role_or_arn(standin, replicas):
    standin.control.faults.extend([Fault("ListHarnesses", "AccessDeniedException")])
    with pytest.raises(ControlFault) as caught:
        await replicas[0].reconcile([_wanted("one")])
    assert str(caught.value) == "AccessDeniedException"
    assert "arn:" not in repr(_wanted("one"))


def test_names_are_stable_apart_and_legal():
    names = {Wanted(deployment, agent, Spec(ROLE)).name for agent in ("a", "b") for deployment in ("d", "e")}
    assert len(names) == 4
    assert all(len(name) == 36 and name.replace("_", "").isalnum() for name in names)
    assert _wanted("a").name == _wanted("a", role=OTHER_ROLE).name


@pytest.mark.parametrize("status", ["CREATING", "UPDATING", "DELETING"])
def test_what_is_being_changed_waits_for_a_later_round(status):
    found = Found(_wanted("a").name, "id", "arn", status, {DEPLOYMENT_TAG: "d", AGENT_TAG: "a"})
    assert plan("d", [], ["a"], [found]).size == 0
    assert plan("d", [_wanted("a")], [], [found]).size == 0
