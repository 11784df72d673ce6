"""Continuity out of committed thread state, through the real state facade of a real sessions process."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.testing import kinds, served, text_of
from tests.sessions.processes import Client, Sessions, fence_of, token_of


@pytest.fixture
async def sessions():
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    process = Sessions(folder)
    await process.start()
    client = Client(process)
    yield client
    await client.close()
    await process.stop()
    shutil.rmtree(folder)


class Conversation:
    """Plays the control plane for one conversation: reserve, run, commit, release."""

    def __init__(self, sessions: Client) -> None:
        self.sessions = sessions
        self.count = 0

    async def turn(self, client, message: str, *, commit: bool = True):
        self.count += 1
        binding = await self.sessions.granted(f"run-{self.count}")
        fence = fence_of(binding)
        client.binding_id, client.epoch = binding.binding_id, binding.epoch
        client.runtime_generation = binding.runtime_generation
        await client.create()
        turn = client.input(message, token=token_of(fence), thread_revision=binding.head.revision)
        drafts = await client.follow(client.start(fence, turn), fence)
        last = drafts[-1]
        if commit and kinds([last]) == ["run.completed"]:
            pending = last.pending_head if last.HasField("pending_head") else None
            await self.sessions.commit(
                fence, None if pending is None else list(pending.part_refs), replace=bool(pending and pending.replace)
            )
        await self.sessions.release(binding.binding_id, f"run-{self.count}")
        return drafts


def served_with(sessions: Client):
    return served(ReferenceAdapter, state_address=sessions.sessions.facade)


async def test_turns_show_continuity_also_from_another_process_and_state_does_not_grow(sessions):
    conversation = Conversation(sessions)
    async with served_with(sessions) as client:
        first = await conversation.turn(client, "my name is Kim")
        assert "turn 1" in text_of(first)
        assert len(first[-1].pending_head.part_refs) == 1
        assert first[-1].pending_head.replace
        second = await conversation.turn(client, "who am I?")
        assert "turn 2" in text_of(second)
        assert "my name is Kim" in text_of(second)
    async with served_with(sessions) as another:
        third = await conversation.turn(another, "and now?")
        assert "turn 3" in text_of(third)
        assert "who am I?" in text_of(third)
        assert "Kim" not in text_of(third)
    assert len((await sessions.find()).head.part_refs) == 1


async def test_i30_what_was_not_committed_is_not_remembered(sessions):
    conversation = Conversation(sessions)
    async with served_with(sessions) as client:
        await conversation.turn(client, "one")
        await conversation.turn(client, "lost", commit=False)
        third = await conversation.turn(client, "three")
        assert "turn 2" in text_of(third)
        assert "lost" not in text_of(third)


async def test_bursts_leave_no_state_and_disturb_none(sessions):
    conversation = Conversation(sessions)
    async with served_with(sessions) as client:
        burst = await conversation.turn(client, '{"n": 2}')
        assert not burst[-1].HasField("pending_head")
        assert "turn 1" in text_of(await conversation.turn(client, "hello"))
        await conversation.turn(client, '{"n": 2}')
        assert "turn 2" in text_of(await conversation.turn(client, "again"))


async def test_scripts_play_one_per_turn_of_the_session(sessions):
    conversation = Conversation(sessions)
    message = '{"scripts": [[{"text": "first"}], [{"text": "second"}]]}'
    async with served_with(sessions) as client:
        assert text_of(await conversation.turn(client, message)) == "first"
        assert text_of(await conversation.turn(client, message)) == "second"
        assert text_of(await conversation.turn(client, message)) == ""


async def test_the_state_step_writes_parts_that_are_appended(sessions):
    conversation = Conversation(sessions)
    async with served_with(sessions) as client:
        drafts = await conversation.turn(client, '{"script": [{"state": "a"}, {"state": "b"}]}')
        assert len(drafts[-1].pending_head.part_refs) == 2
        assert not drafts[-1].pending_head.replace


class Executor:
    """Stands in for the run in the host: says when it is asked for another executor, and which one came."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.asked = asyncio.Event()
        self.came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def wait_for_another(self, generation: int, seconds: float) -> bool:
        assert generation == self.generation
        assert seconds > 0
        self.asked.set()
        return await self.came


@pytest.mark.parametrize("comes", [True, False])
async def test_i10_a_write_during_a_takeover_waits_for_the_next_executor(sessions, comes):
    from adapters.sdk.cancellation import Deadline
    from adapters.sdk.errors import PersistenceError
    from adapters.sdk.facade import FacadeChannels
    from adapters.sdk.thread_state import StateAccess, ThreadState

    binding = await sessions.granted("r1")
    fence = fence_of(binding)
    executor = Executor(1)
    channels = FacadeChannels()
    try:
        await sessions.claim(binding.binding_id, "r1", 2)
        access = StateAccess(
            lambda: channels.state(sessions.sessions.facade), fence, executor, token_of(fence), Deadline(9e9)
        )
        writing = asyncio.create_task(ThreadState(access).write_part(b"x", "test.v1"))
        await asyncio.wait_for(executor.asked.wait(), 30)
        assert not writing.done()
        executor.generation = 2 if comes else 1
        executor.came.set_result(comes)
        if comes:
            assert await writing
        else:
            with pytest.raises(PersistenceError):
                await writing
    finally:
        await channels.close()


async def test_a_part_larger_than_a_chunk_comes_back_whole(sessions):
    from adapters.sdk.cancellation import Deadline
    from adapters.sdk.facade import FacadeChannels
    from adapters.sdk.thread_state import StateAccess, ThreadState

    fence = fence_of(await sessions.granted("r1"))
    channels = FacadeChannels()
    try:
        access = StateAccess(
            lambda: channels.state(sessions.sessions.facade), fence, Executor(1), token_of(fence), Deadline(9e9)
        )
        thread = ThreadState(access)
        assert await thread.load_head() is None
        large = bytes(range(256)) * 10_000
        refs = [await thread.write_part(large, "test.v1"), await thread.write_part(b"", "test.v1")]
        assert await thread.write_part(large, "test.v1", key="part-1") == refs[0]
        pending = thread.pending_head()
        assert pending is not None
        assert list(pending.part_refs) == refs
        await sessions.commit(fence, refs)
        head = await thread.load_head()
        assert head is not None
        assert (head.revision, head.codec, head.parts) == (1, "test.v1", (large, b""))
    finally:
        await channels.close()


async def test_i34_a_facade_that_is_restarted_is_waited_for_and_another_replica_is_asked_at_once(sessions, monkeypatch):
    monkeypatch.setattr("adapters.sdk.facade.AWAY_SECONDS", 90)  # however slow the machine is to start it
    from adapters.sdk.cancellation import Deadline
    from adapters.sdk.facade import FacadeChannels
    from adapters.sdk.thread_state import StateAccess, ThreadState

    fence = fence_of(await sessions.granted("r1"))
    channels = FacadeChannels()
    away, there = (lambda: channels.state("unix:/nowhere.sock")), (lambda: channels.state(sessions.sessions.facade))
    try:
        access = StateAccess(away, fence, Executor(1), token_of(fence), Deadline(9e9), others=(there,))
        assert await ThreadState(access).write_part(b"x", "test.v1")

        await sessions.sessions.stop()
        access = StateAccess(there, fence, Executor(1), token_of(fence), Deadline(9e9))
        thread = ThreadState(access)
        writing = asyncio.create_task(thread.write_part(b"x", "test.v1"))
        await sessions.sessions.start()
        assert await writing
    finally:
        await channels.close()


async def test_a_stale_run_gets_a_persistence_failure_and_no_text_of_the_facade(sessions):
    conversation = Conversation(sessions)
    async with served_with(sessions) as client:
        await conversation.turn(client, "one")
        binding = await sessions.granted("run-x")
        fence = fence_of(binding)
        client.runtime_generation = binding.runtime_generation
        await client.create()
        await sessions.release(binding.binding_id, "run-x")
        turn = client.input("late", token=token_of(fence), thread_revision=1)
        drafts = await client.follow(client.start(fence, turn))
        failed = drafts[-1].payload.run_failed
        assert (failed.category, failed.code) == (9, "state_load_failed")


async def test_a_facade_that_is_away_is_a_retryable_persistence_failure(sessions):
    async with served(ReferenceAdapter, state_address="unix:/nowhere.sock") as client:
        drafts = await client.turn("hello", token="t", seconds=60)
        failed = drafts[-1].payload.run_failed
        assert (failed.category, failed.code, failed.retryable) == (9, "state_save_failed", True)
        assert kinds(drafts)[-1] == "run.failed"
