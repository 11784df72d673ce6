"""Native sessions over real gRPC: named by the caller in either placement, or by the provider (portable abstractions, Session managers)."""

import asyncio

import pytest

from adapters.sdk import errors, events
from adapters.sdk.session import CallerAssignedSessions, EventAssignedSessions
from adapters.sdk.testing import kinds, served
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.adapter.v1 import descriptor_pb2
from tests.adapters.scripted import CANCEL, FAST, SteeredAdapter, until
from tests.adapters.status import refused

CALLER = descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED


class CountedSessions(CallerAssignedSessions):
    """Counts what is opened; gives `answer`, if set, instead of a derived name."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.answer: object = None

    async def open(self, context):
        self.opened += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        return self.answer if isinstance(self.answer, str) else await super().open(context)


async def play(turn):
    # A provider does not rename such a session: this event goes nowhere.
    yield events.session_updated("another-name")
    yield events.text("a")
    yield events.completed()


def caller_assigned():
    sessions = CountedSessions()
    return sessions, SteeredAdapter(play, sessions, CALLER)


@pytest.mark.parametrize("worker", [True, False], ids=["worker", "host"])
async def test_a_session_nobody_opened_is_opened_once_and_named_before_the_first_event(worker):
    sessions, adapter = caller_assigned()
    async with served(lambda: adapter, worker=worker) as client:
        drafts = await client.turn("x")
        assert kinds(drafts) == ["session.updated", "content.delta", "run.completed"]
        name = drafts[0].native_session_id
        assert name.startswith("hm-")
        assert adapter.turns[0].native_session_id == name
        # The name did not become durable: it is said again, and nothing is opened again.
        assert (await client.turn("y"))[0].native_session_id == name
        assert sessions.opened == 1
        # It did: the turn carries it.
        assert kinds(await client.turn("z", native_session_id=name)) == ["content.delta", "run.completed"]
        assert adapter.turns[2].native_session_id == name
        assert sessions.opened == 1


async def test_a_session_the_control_plane_opened_is_not_opened_again():
    sessions, adapter = caller_assigned()
    async with served(lambda: adapter) as client:
        await client.create()
        request = adapter_pb2.OpenSessionRequest(fence=client.fence(), context=client.context())
        name = (await client.adapter.OpenSession(request)).native_session_id
        assert kinds(await client.turn("x", native_session_id=name)) == ["content.delta", "run.completed"]
        assert adapter.turns[0].native_session_id == name
        assert sessions.opened == 1


async def test_a_session_the_provider_names_is_not_opened_by_the_host():
    class Sessions(EventAssignedSessions):
        async def open(self, context):
            raise AssertionError("opened")

    adapter = SteeredAdapter(play, Sessions(), descriptor_pb2.SESSION_ID_STYLE_EVENT_ASSIGNED)
    async with served(lambda: adapter, worker=True) as client:
        drafts = await client.turn("x")
        assert kinds(drafts) == ["session.updated", "content.delta", "run.completed"]
        assert drafts[0].native_session_id == "another-name"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (errors.UnavailableError("The provider is away."), "unavailable"),
        (RuntimeError("canary-3f"), "adapter_defect"),
        ("x" * 513, "protocol_violation"),
    ],
)
async def test_i22_a_session_that_cannot_be_opened_fails_the_run_and_the_next_one_tries_again(answer, code):
    sessions, adapter = caller_assigned()
    sessions.answer = answer
    async with served(lambda: adapter, worker=True) as client:
        (failed,) = await client.turn("x")
        assert failed.payload.run_failed.code == code
        unexpected = isinstance(answer, RuntimeError)
        known = errors.POSSIBLE_SIDE_EFFECTS if unexpected else errors.NO_SIDE_EFFECTS
        assert failed.payload.run_failed.side_effect_status == known
        assert b"canary" not in failed.SerializeToString()
        assert not adapter.turns
        sessions.answer = None
        assert kinds(await client.turn("y"))[0] == "session.updated"


async def test_i35_a_session_name_that_is_too_long_is_refused_to_the_control_plane_too():
    sessions, adapter = caller_assigned()
    sessions.answer = "x" * 513
    async with served(lambda: adapter) as client:
        request = adapter_pb2.OpenSessionRequest(fence=client.fence(), context=client.context())
        await refused(client.adapter.OpenSession(request), "INTERNAL", "protocol_violation")


async def test_i12_a_cancel_while_the_session_opens_ends_the_run_with_nothing_before_its_terminal():
    sessions, adapter = caller_assigned()
    sessions.answer = asyncio.Event()
    async with served(lambda: adapter, worker=True, limits=FAST) as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await until(lambda: sessions.opened)
        await client.cancel(fence, CANCEL)
        assert kinds(await client.follow(call)) == ["run.cancelled"]
        assert not adapter.turns


async def test_a_provider_that_refuses_after_the_session_was_named_had_no_side_effects():
    async def refusing(turn):
        raise errors.AuthenticationError("No key.")
        yield

    adapter = SteeredAdapter(refusing, CountedSessions(), CALLER)
    async with served(lambda: adapter, worker=True) as client:
        drafts = await client.turn("x")
        assert kinds(drafts) == ["session.updated", "run.failed"]
        assert drafts[1].payload.run_failed.side_effect_status == errors.NO_SIDE_EFFECTS
