"""The Claude adapter, its real SDK and program, held to every rule that a model can be made to show (certification).

The model is the stand-in of the Messages API. What a catalog asks for is the certificate of a worker; of a host there is what only a host has.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import AsyncExitStack

import pytest

from adapters.sdk.testing import connected, kinds
from conformance.certification import Options, certify
from conformance.drivers.claude import BASE_URL, CREDENTIAL_FILE, MODEL_ADDRESS, SKILLS
from harness.common.v1 import blueprint_pb2
from tests.adapters.processes import AdapterProcess
from tests.conformance.conftest import ROOT
from tests.standins.messages import serving_in_thread
from tests.support.adapters import folder

__all__ = ["folder"]
# About 130 turns, most of them with a program of their own.
pytestmark = pytest.mark.timeout(900)
LIVE = "HARNESS_CLAUDE_LIVE_KEY_FILE"
ELSEWHERE = {"ANTHROPIC_API_KEY_FILE": "-"}
# What the program does not do, and no rehearsal could show.
NOT_VERIFIED = {"R10.2/interrupt"}
# What neither model nor program says: failures in the kit's words, exceptions, events of the contract.
REHEARSED = {
    "R2.3/late-events",
    "R3.11/own-error",
    "R3.11/own-tools",
    "R11.1/categories",
    "R11.2/retryable",
    "R11.3/unclassified",
    "R11.4/out-of-order",
    "R11.5/malformed",
    "R11.5/oversized",
}


def of_result(made, result):
    return {each.case.id for each in made.cases if each.result == result}


@pytest.fixture
def skills(folder, monkeypatch):
    """Two skills that the driver's profile gives."""
    for name, word in (("kit-tea", "samovar"), ("kit-coffee", "percolator")):
        (folder / "skills" / name).mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: How it is made\n---\nUse a {word}\n"
        (folder / "skills" / name / "SKILL.md").write_text(text)
    monkeypatch.setenv(SKILLS, str(folder / "skills"))


async def test_workers_are_certified_and_reach_their_model_with_the_runs_own_token(folder, monkeypatch, skills):
    workers = [
        AdapterProcess(folder, "adapters.claude_agent_sdk", ("--worker",), ELSEWHERE, name=f"w{number}")
        for number in range(3)
    ]
    described = AdapterProcess(folder, "adapters.claude_agent_sdk", environment=ELSEWHERE, name="described")
    with serving_in_thread() as model:
        monkeypatch.setenv(MODEL_ADDRESS, model.url.removeprefix("http://"))
        async with AsyncExitStack() as stack:
            for process in (described, *workers):
                await process.start()
                stack.push_async_callback(process.stop)
            options = Options(
                workers[0].address,
                placement="worker",
                driver="claude",
                descriptor=described.address,
                beside=tuple(worker.address for worker in workers[1:]),
            )
            made = await certify(options, lambda _: None)
        asked = [(each.headers.get("authorization", ""), each.headers.get("x-api-key")) for each in model.asked]
    report(made, "claude-worker")
    assert {each.case.id: each.reason for each in made.cases if each.result == "failed"} == {}
    assert of_result(made, "not_verified") == NOT_VERIFIED
    assert {each.case.id for each in made.cases if each.rehearsed} == REHEARSED
    assert made.verdict == "certified"
    claims = made.document["capabilities"]
    unverified = {key for key, claim in claims.items() if claim["result"] == "not_verified"}
    # What an adapter host shows, what no wire shows, and subagents, of which none can ask a person.
    assert unverified == {
        "observability.redaction",
        "runtime.eviction_recovery",
        "runtime.sandbox_isolation",
        "session.clear",
        "session.cross_replica_resume",
        "subagents",
        "thread.eviction_restore",
    }
    # I28: each run shows its own token, which is the kit's, and nothing else is shown.
    tokens = {bearer for bearer, _ in asked}
    assert all(re.fullmatch(r"Bearer hkc[0-9a-f]{16}\.model-token\..+", bearer) for bearer in tokens)
    assert len(tokens) > 50
    assert {key for _, key in asked} == {None}


async def test_what_an_adapter_host_adds_is_in_order(folder, monkeypatch, skills):
    key = folder / "key"
    key.write_text("key-of-this-certification\n")
    with serving_in_thread() as model:
        monkeypatch.setenv(BASE_URL, model.url)
        monkeypatch.setenv(CREDENTIAL_FILE, str(key))
        host = AdapterProcess(folder, module="adapters.claude_agent_sdk", environment=ELSEWHERE)
        await host.start()
        try:
            # What the other sections look at is the same code in both placements.
            made = await certify(
                Options(host.address, driver="claude", sections=(1, 11, 12), pid=host.pid), lambda _: None
            )
            asked = len(model.asked)
            async with connected(host.address, harness_id="claude_agent_sdk") as client:
                client.profile_settings = {"base_url": model.url, "credential_file": str(key)}
                client.persistence = blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
                ordinary = await client.turn(json.dumps({"rehearse": [{"raise": "boom"}]}))
        finally:
            await host.stop()
        credentials = {request.headers.get("x-api-key") for request in model.asked}
    # Under any other profile a rehearsal is a message like others, and the model's to answer.
    assert kinds(ordinary)[-1] == "run.completed"
    assert len(model.asked) > asked
    assert {each.case.id: each.reason for each in made.cases if each.result == "failed"} == {}
    assert of_result(made, "not_verified") == set()
    assert of_result(made, "not_applicable") == {"R1.15/bind", "R1.16/shutdown", "R12.2/trace"}
    rehearsed = {each for each in REHEARSED if each.startswith("R11.")}
    assert {each.case.id for each in made.cases if each.rehearsed} == {*rehearsed, "R11.7/apart"}
    assert made.verdict == "partial"
    assert credentials == {"key-of-this-certification"}


def report(made, name):
    """Beside the reports of the other adapters."""
    folder = ROOT / "build" / "certification" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "certification.json").write_text(json.dumps(made.document, indent=1))


@pytest.mark.skipif(
    LIVE not in os.environ, reason=f"asks the real service and costs money: set {LIVE} to a file with a key"
)
async def test_the_real_service_is_understood(folder, monkeypatch):
    monkeypatch.setenv(CREDENTIAL_FILE, os.environ[LIVE])
    host = AdapterProcess(folder, module="adapters.claude_agent_sdk", environment={"ANTHROPIC_API_KEY_FILE": "-"})
    await host.start()
    try:
        options = Options(host.address, driver="tests.conformance.live_claude:LiveDriver", sections=(5,))
        made = await certify(options, lambda _: None)
    finally:
        await host.stop()
    assert {result.case.id: result.reason for result in made.cases if result.result == "failed"} == {}
    known = {result.case.id for result in made.cases if result.result == "passed"}
    assert {"R5.1/multi-turn", "R5.2/pending-head", "R5.7/lost-runtime"} <= known
