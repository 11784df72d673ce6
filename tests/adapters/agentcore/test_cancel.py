"""Cancels, and what is left of streams, sockets and threads when they are over (I12, I20)."""

import asyncio
import threading

import pytest

from adapters.agentcore import clients, runtime
from adapters.agentcore.stopping import Stopper
from adapters.agentcore.threads import THREAD_PREFIX
from conformance.plane.broker import ECHO, Stall
from conformance.plane.run import kinds
from harness.common.v1 import error_pb2
from tests.adapters.agentcore.rig import answers, call, script
from tests.adapters.rig import reached


def threads():
    return [one for one in threading.enumerate() if one.name.startswith(THREAD_PREFIX) and "stand-in" not in one.name]


def known_harness(rig):
    """A harness that the control plane knows the runtime of."""
    return rig.standin.control.add("agent")["arn"]


@pytest.mark.parametrize("where", ["stream", "headers"])
async def test_i12_a_cancel_ends_stream_thread_and_remote_session(rig, where):
    conversation = await rig.conversation(harness_arn=known_harness(rig), read_timeout_seconds=3600)
    run = conversation.run(script({"text": "a"}, {"hang": "stream"}) if where == "stream" else script({"hang": where}))
    stream = run.start()
    if where == "stream":
        while "content_delta" not in kinds(stream.drafts):
            assert await stream.read() is not None
    await reached(lambda: rig.standin.of("InvokeHarness"))
    cancelled = await run.cancel()
    assert cancelled.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    while await stream.read() is not None:
        pass
    assert kinds(stream.drafts)[-1] == "run_cancelled"
    rig.standin.wait(lambda: len(rig.standin.of("StopRuntimeSession")) == 1)
    await reached(lambda: not threads())
    # The conversation goes on, and the stop of before does not reach it.
    drafts = await conversation.say("still there?")
    assert kinds(drafts)[-1] == "run_completed"
    await conversation.cleanup()
    await asyncio.to_thread(rig.standin.wait, lambda: rig.standin.open_connections == 0)


async def test_a_profile_may_forbid_the_stop(rig):
    conversation = await rig.conversation(stop_session=False)
    run = conversation.run(script({"text": "a"}, {"hang": "stream"}))
    stream = run.start()
    while "content_delta" not in kinds(stream.drafts):
        assert await stream.read() is not None
    await run.cancel()
    await reached(lambda: not threads())
    await conversation.cleanup()
    await asyncio.to_thread(rig.standin.wait, lambda: rig.standin.open_connections == 0)
    assert rig.standin.of("StopRuntimeSession") == []


async def test_i25_a_cancel_while_a_tool_works_leaves_no_call_unanswered(rig):
    conversation = await rig.conversation(stop_session=False)
    conversation.tools.answers["kit.echo"] = Stall()
    run = conversation.run(script({"tools": [call(ECHO, "a", text="x")]}, {"text": "never"}))
    stream = run.start()
    while "tool_started" not in kinds(stream.drafts):
        assert await stream.read() is not None
    await run.cancel()
    drafts = await conversation.say("next")
    assert kinds(drafts)[-1] == "run_completed"
    assert answers(rig.standin)["a"]["status"] == "error"


async def test_a_turn_does_not_begin_while_the_session_is_still_being_stopped(rig, monkeypatch):
    conversation = await rig.conversation(harness_arn=known_harness(rig))
    stopped = asyncio.Event()

    async def stop(*_: object) -> bool:
        return await stopped.wait()

    monkeypatch.setattr(Stopper, "stop", stop)
    monkeypatch.setattr(runtime, "STOP_SECONDS", 0.05)
    run = conversation.run(script({"text": "a"}, {"hang": "stream"}))
    stream = run.start()
    while "content_delta" not in kinds(stream.drafts):
        assert await stream.read() is not None
    await run.cancel()
    # A stop that comes late would end what is asked now.
    failed = (await conversation.say("too soon"))[-1].payload.run_failed
    assert (failed.code, failed.side_effect_status) == ("session_stopping", error_pb2.SIDE_EFFECT_STATUS_NONE)
    assert failed.retryable
    stopped.set()
    assert kinds(await conversation.say("now"))[-1] == "run_completed"
    assert len(rig.standin.of("InvokeHarness")) == 2


async def test_i35_a_stream_more_than_the_profile_allows_is_refused_and_no_other_is_disturbed(rig, monkeypatch):
    monkeypatch.setattr(clients, "ROOM_SECONDS", 0.05)
    first, second = [await rig.conversation(max_connections=1, stop_session=False) for _ in range(2)]
    run = first.run(script({"text": "a"}, {"hang": "stream"}))
    stream = run.start()
    while "content_delta" not in kinds(stream.drafts):
        assert await stream.read() is not None
    failed = (await second.say("no room"))[-1].payload.run_failed
    assert (failed.code, failed.retryable) == ("streams_in_use", True)
    assert len(rig.standin.of("InvokeHarness")) == 1
    await run.cancel()
    await reached(lambda: not threads())


async def test_i35_back_pressure_holds_the_thread_and_a_cancel_frees_it(rig):
    conversation = await rig.conversation(stop_session=False)
    run = conversation.run(script({"burst": 20_000, "size": 200}))
    stream = run.start()
    assert await stream.read() is not None
    # Nobody reads or acknowledges: the host stops reading, and so does the thread.
    await run.cancel()
    await reached(lambda: not threads())


async def test_200_turns_at_once_share_one_host(rig):
    conversations = [await rig.conversation(stop_session=False) for _ in range(200)]
    said = await asyncio.gather(*(one.say("hello") for one in conversations))
    assert {kinds(drafts)[-1] for drafts in said} == {"run_completed"}
    rig.standin.forget()
    runs = [one.run(script({"text": "a"}, {"hang": "stream"})) for one in conversations]
    streams = [run.start() for run in runs]
    await reached(lambda: len(rig.standin.of("InvokeHarness")) == 200)
    assert len(threads()) == 200

    async def ended(stream):
        while await stream.read() is not None:
            pass
        return kinds(stream.drafts)

    for run in runs:
        await run.cancel()
    for one in [await ended(stream) for stream in streams]:
        assert one[-1] == "run_cancelled"
    await reached(lambda: not threads())
    for one in conversations:
        await one.cleanup()
    await asyncio.to_thread(rig.standin.wait, lambda: rig.standin.open_connections == 0)
