"""What an adapter is told at an end: which session to close and under what profile, and that its process stops (I20)."""

import asyncio

import pytest

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk import serve
from adapters.sdk.serve import serve_adapter, serve_worker
from adapters.sdk.session import BindingView, CallerAssignedSessions, ClosedSession
from adapters.sdk.testing import served
from harness.adapter.v1 import adapter_service_pb2
from tests.adapters.scripted import SteeredAdapter, three


class _Sessions(CallerAssignedSessions):
    def __init__(self):
        super().__init__()
        self.closed = []

    async def close(self, session):
        self.closed.append(session)


async def test_a_session_is_closed_with_all_that_ending_it_may_need():
    sessions = _Sessions()
    async with served(lambda: SteeredAdapter(three, sessions)) as client:
        request = adapter_service_pb2.CloseSessionRequest(
            fence=client.fence(), native_session_id="native-canary", agent_id="writer"
        )
        request.profile_settings.update({"region": "setting-canary"})
        await client.adapter.CloseSession(request)
        await client.adapter.CloseSession(adapter_service_pb2.CloseSessionRequest(fence=client.fence()))
        fence = client.fence()
    binding = BindingView(fence.binding_id, fence.epoch, fence.runtime_generation)
    assert sessions.closed == [
        ClosedSession(binding, "native-canary", "writer", {"region": "setting-canary"}),
        ClosedSession(binding, "", "", {}),
    ]
    # I18: whoever logs it logs neither.
    assert "canary" not in repr(sessions.closed)


class Closing(ReferenceAdapter):
    """Says how its end went."""

    def __init__(self):
        super().__init__()
        self.closes = 0
        self.let = asyncio.Event()
        self.let.set()
        self.fails = False

    async def close(self):
        self.closes += 1
        await self.let.wait()
        if self.fails:
            raise RuntimeError("canary")


@pytest.mark.parametrize("kind", [serve_adapter, serve_worker])
async def test_i20_an_adapter_is_closed_once_after_its_runtimes(kind, tmp_path):
    adapter = Closing()
    server = await kind(lambda: adapter, listen=f"unix:{tmp_path}/a.sock")
    await server.stop(0)
    await server.stop(0)
    assert adapter.closes == 1


async def test_i20_an_adapter_that_does_not_close_or_fails_to_keeps_no_process(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serve, "CLOSE_SECONDS", 0.05)
    for number, (hangs, fails) in enumerate([(True, False), (False, True)]):
        adapter = Closing()
        adapter.fails = fails
        if hangs:
            adapter.let.clear()
        server = await serve_adapter(lambda adapter=adapter: adapter, listen=f"unix:{tmp_path}/{number}.sock")
        await server.stop(0)
        assert adapter.closes == 1
    assert "canary" not in capsys.readouterr().out


async def test_i20_a_stop_that_is_cut_short_does_not_close_the_adapter_twice(tmp_path):
    adapter = Closing()
    adapter.let.clear()
    server = await serve_adapter(lambda: adapter, listen=f"unix:{tmp_path}/a.sock")
    stopping = asyncio.ensure_future(server.stop(5))
    async with asyncio.timeout(90):
        while not adapter.closes:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.wait([stopping])
    adapter.let.set()
    await server.stop(0)
    assert adapter.closes == 1
