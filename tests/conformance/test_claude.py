"""The Claude adapter, its real SDK and program, held to every rule that a model can be made to show (certification).

The model is the stand-in of the Messages API. As an adapter host it certifies nothing for a catalog, which asks for a worker; what the host and the
runtime do is the same code in both.
"""

from __future__ import annotations

import os

import pytest

from conformance.certification import Options, certify
from conformance.drivers.claude import BASE_URL, CREDENTIAL_FILE
from tests.adapters.processes import AdapterProcess
from tests.standins.messages import serving_in_thread
from tests.support.adapters import folder

__all__ = ["folder"]
# About 120 turns, each a program of its own.
pytestmark = pytest.mark.timeout(900)
LIVE = "HARNESS_CLAUDE_LIVE_KEY_FILE"
# What no model can be made to do to the adapter, or the program does not do; see the driver.
NOT_VERIFIED = {
    "R2.3/late-events",
    "R3.11/own-tools",
    "R6.8/approvals",
    "R6.8/decisions",
    "R6.9/several",
    "R10.1/nested",
    "R10.2/interrupt",
    "R11.1/categories",
    "R11.2/retryable",
    "R11.3/unclassified",
    "R11.4/out-of-order",
    "R11.5/malformed",
    "R11.5/oversized",
    "R11.7/apart",
}
NOT_APPLICABLE = {"R1.15/bind", "R1.16/shutdown", "R12.2/trace"}


async def test_every_rule_that_a_model_can_show_is_kept(folder, monkeypatch):
    key = folder / "key"
    key.write_text("key-of-this-certification\n")
    with serving_in_thread() as model:
        monkeypatch.setenv(BASE_URL, model.url)
        monkeypatch.setenv(CREDENTIAL_FILE, str(key))
        host = AdapterProcess(folder, module="adapters.claude_agent_sdk", environment={"ANTHROPIC_API_KEY_FILE": "-"})
        await host.start()
        try:
            made = await certify(Options(host.address, driver="claude"), lambda _: None)
        finally:
            await host.stop()
        credentials = {request.headers.get("x-api-key") for request in model.asked}
    failed = {result.case.id: result.reason for result in made.cases if result.result == "failed"}
    assert not failed
    assert {result.case.id for result in made.cases if result.result == "not_verified"} == NOT_VERIFIED
    assert {result.case.id for result in made.cases if result.result == "not_applicable"} == NOT_APPLICABLE
    # Rules without a capability are among those that no model shows, so the kit does not say `certified`.
    assert made.verdict == "incomplete"
    assert credentials == {"key-of-this-certification"}


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
