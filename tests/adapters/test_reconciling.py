"""AgentReconciliationService: served by an adapter that keeps something for each agent, and by no other."""

import asyncio

import grpc
import grpc.aio
import pytest

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.contract import Reconciled
from adapters.sdk.errors import UnavailableError
from adapters.sdk.serve import serve_adapter
from harness.adapter.v1 import reconciliation_service_pb2 as pb2
from harness.adapter.v1 import reconciliation_service_pb2_grpc


class Keeper(ReferenceAdapter):
    """Keeps something for each agent."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.fails = False

    async def reconcile_agents(self, profile_settings, agent_ids, ended_agent_ids):
        if self.fails:
            raise UnavailableError("The provider cannot be asked.")
        self.asked.append((dict(profile_settings), list(agent_ids), list(ended_agent_ids)))
        unlisted = [f"a{number:03}" for number in range(150)]
        return Reconciled(1, 2, 3, 4, unlisted, ["b", "a", "b", *(f"c{number}" for number in range(30))])


async def _ask(adapter, tmp_path, request):
    server = await serve_adapter(lambda: adapter, listen=f"unix:{tmp_path}/a.sock")
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = reconciliation_service_pb2_grpc.AgentReconciliationServiceStub(channel)
            return await stub.ReconcileAgents(request, timeout=90)
    finally:
        await server.stop(0)


async def test_a_round_reaches_the_adapter_and_its_answer_is_bounded(tmp_path):
    keeper = Keeper()
    request = pb2.ReconcileAgentsRequest(agent_ids=["one", "two"], ended_agent_ids=["three", "two"])
    request.profile_settings.update({"region": "r"})
    done = await _ask(keeper, tmp_path, request)
    # One that lives has not ended, whoever says so.
    assert keeper.asked == [({"region": "r"}, ["one", "two"], ["three"])]
    assert (done.created, done.updated, done.removed, done.left) == (1, 2, 3, 4)
    unlisted = list(done.unlisted_agent_ids)
    assert len(unlisted) == 100
    assert unlisted == sorted(set(unlisted) & {f"a{number:03}" for number in range(150)})
    assert len(done.fault_codes) == 16
    assert list(done.fault_codes[:2]) == ["a", "b"]


async def test_i35_agents_that_stay_unlisted_do_not_hide_others_for_ever(tmp_path):
    seen: set[str] = set()
    async with asyncio.timeout(90):
        while len(seen) < 150:
            seen |= set((await _ask(Keeper(), tmp_path, pb2.ReconcileAgentsRequest())).unlisted_agent_ids)


@pytest.mark.parametrize(
    ("fails", "request_", "code"),
    [
        (True, pb2.ReconcileAgentsRequest(), grpc.StatusCode.UNAVAILABLE),
        (False, pb2.ReconcileAgentsRequest(agent_ids=["no spaces!"]), grpc.StatusCode.INVALID_ARGUMENT),
        (False, pb2.ReconcileAgentsRequest(agent_ids=["a", "a"]), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_done_is_a_status(tmp_path, fails, request_, code):
    keeper = Keeper()
    keeper.fails = fails
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _ask(keeper, tmp_path, request_)
    assert caught.value.code() is code


async def test_an_adapter_without_it_says_that_it_is_not_implemented(tmp_path):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _ask(ReferenceAdapter(), tmp_path, pb2.ReconcileAgentsRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
