"""Which tool calls a run accepts (run protocol, Tools; I5, I10, I12, I28, I35)."""

from __future__ import annotations

import asyncio
from typing import Any

import protovalidate
import pytest

from harness.common.v1 import capability_token_pb2
from services.common.errors import HarnessError, Reason
from services.runs.intent import CancelReason, cancelled
from services.runs.run import Issued, Status
from services.runs.tools.record import mark_of
from tests.runs.tools.stand import Stand

ENDINGS: tuple[dict[str, Any], ...] = (
    {"intent": cancelled(CancelReason.CLIENT_REQUEST, 1)},
    {"closed": True},
    {"status": Status.COMPLETED},
    {"status": Status.QUEUED},
)


@pytest.mark.parametrize("facts", ENDINGS)
async def test_i12_no_call_passes_a_run_that_ends(stand: Stand, facts: dict[str, Any]) -> None:
    run = await stand.run()
    stand.grant(run)
    run = await stand.change(run, **facts)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run)
    assert refused.value.reason is Reason.STALE_LEASE
    assert not refused.value.retryable
    assert not stand.provider.calls
    assert await stand.record() is None
    assert (await stand.again(run)).tool_calls == ()


@pytest.mark.parametrize(
    "fence",
    [
        {"binding_id": "bnd-2"},
        {"epoch": 2},
        {"turn": 999_999},
        {"run_id": "run-unknown"},
        {"runtime_generation": 2},
    ],
)
async def test_i5_i10_a_call_under_another_fence_is_refused(stand: Stand, fence: dict[str, Any]) -> None:
    run = await stand.run()
    stand.grant(run)
    scope = {name: value for name, value in fence.items() if name != "turn"}
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, token=stand.token(run, **scope), **fence)
    assert refused.value.reason is Reason.STALE_LEASE
    assert not refused.value.retryable
    assert not stand.provider.calls


async def test_i10_only_the_runtime_a_run_was_issued_to_may_call(stand: Stand) -> None:
    run = await stand.run(issued=Issued("unix:/other", "inc-2", 2))
    stand.grant(run)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run)
    assert refused.value.reason is Reason.STALE_LEASE
    not_issued = await stand.run(issued=None)
    stand.grant(not_issued)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(not_issued)
    assert refused.value.reason is Reason.STALE_LEASE
    assert not stand.provider.calls


async def test_i10_an_older_generation_may_try_again_once_its_runtime_is_attached(stand: Stand) -> None:
    run = await stand.run(run_generation=2)
    stand.grant(run)
    for generation, retryable in ((1, True), (3, False)):
        with pytest.raises(HarnessError) as refused:
            await stand.invoke(run, run_generation=generation)
        assert (refused.value.reason, refused.value.retryable) == (Reason.STALE_LEASE, retryable)
    assert not stand.provider.calls
    await stand.invoke(run)
    assert len(stand.provider.calls) == 1


@pytest.mark.parametrize("scope", [{"binding_id": "b"}, {"epoch": 9}, {"runtime_generation": 9}, {"run_id": "r"}])
async def test_i28_a_token_opens_its_own_run_alone(stand: Stand, scope: dict[str, Any]) -> None:
    run = await stand.run()
    stand.grant(run)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, token=stand.token(run, **scope))
    assert refused.value.reason is Reason.STALE_LEASE


async def test_i28_the_broker_takes_no_other_credential(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    for token in (stand.token(run, audience="state"), "a-service-token", ""):
        with pytest.raises(HarnessError) as refused:
            await stand.invoke(run, token=token)
        assert refused.value.reason is Reason.UNAUTHENTICATED


async def test_a_tool_that_is_not_the_agents_is_not_there(stand: Stand) -> None:
    run, other = await stand.run(), await stand.run()
    stand.grant(run)
    stand.grant(other, "secret")
    for tool_id, token in (("secret", None), ("unknown", None), ("echo", stand.token(run, tool_ids=()))):
        with pytest.raises(HarnessError) as refused:
            await stand.invoke(run, tool_id=tool_id, token=token)
        assert (refused.value.reason, refused.value.message) == (
            Reason.PERMISSION_DENIED,
            "The agent has no such tool.",
        )
    assert (await stand.again(run)).tool_calls == ()
    assert await stand.describe(run) == ["echo"]


async def test_describing_needs_a_run_that_takes_calls(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.change(run, closed=True)
    with pytest.raises(HarnessError) as refused:
        await stand.describe(run)
    assert refused.value.reason is Reason.STALE_LEASE


async def test_i35_calls_of_a_run_are_counted_once_each_and_bounded(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    stand.catalog.max_tool_calls[run.agent_id or ""] = 2
    for call_id in ("a", "a", "b", "b", "a"):
        await stand.invoke(run, call_id)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, "c")
    assert (refused.value.reason, refused.value.retryable) == (Reason.CAPACITY, False)
    assert "2" in refused.value.message
    assert (await stand.again(run)).tool_calls == (mark_of("a"), mark_of("b"))
    assert len(stand.provider.calls) == 2


async def test_i35_a_raced_limit_is_kept(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replica()
    stand.catalog.max_tool_calls[run.agent_id or ""] = 3
    answers = await asyncio.gather(
        *(stand.invoke(run, f"call-{number}", replica=number % 2) for number in range(12)), return_exceptions=True
    )
    refused = [one for one in answers if isinstance(one, HarnessError)]
    assert len(refused) == 9
    assert len(stand.provider.calls) == 3


async def test_i35_ten_thousand_calls_fit_a_run(stand: Stand) -> None:
    marks = tuple(mark_of(f"{number}-{'x' * 120}") for number in range(9_999))
    run = await stand.run(tool_calls=marks)
    stand.grant(run)
    stand.catalog.max_tool_calls[run.agent_id or ""] = 10_000
    await stand.invoke(run)
    assert len((await stand.again(run)).tool_calls) == 10_000


async def test_i35_a_token_for_128_tools_fits_its_bound(stand: Stand) -> None:
    run = await stand.run()
    for number in range(128):
        stand.grant(run, f"{'long.tool:id-' * 9}{number:03}")
    token = capability_token_pb2.CapabilityToken(audience="tool", value=stand.token(run))
    token.expires_at.GetCurrentTime()
    assert protovalidate.collect_violations(token) == []
    assert len(await stand.describe(run)) == 128
