"""Who a conversation belongs to (I1, I2, I3, I4)."""

import asyncio
from pathlib import Path

import pytest

from services.common.errors import Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import ENQUEUE, EXISTING, GRANTED, OCCUPIED, SUBJECT, WAITING, Client, refused


async def test_i1_the_same_tuple_has_the_same_id_on_every_replica(start: Start, folder: Path) -> None:
    first = await start("a")
    here = await first.granted("r1")
    # The second process has a store of its own: nothing but the key can make the ids equal.
    second = await start("b", data_dir=folder / "other")
    there = await second.granted("r2")
    assert here.binding_id == there.binding_id
    assert here.owner_id == there.owner_id
    others = [
        await second.granted("r3", conversation="c2"),
        await second.granted("r4", subject="somebody-else"),
    ]
    assert len({here.binding_id, *(other.binding_id for other in others)}) == 3


async def test_i1_no_raw_subject_is_kept_or_logged(start: Start, folder: Path) -> None:
    client = await start()
    binding = await client.granted("r1")
    await client.release(binding.binding_id, "r1")
    await client.begin_clear()
    await client.finish_clear(binding.binding_id)
    await refused(client.find(conversation="none"), Reason.NOT_FOUND)
    await client.sessions.stop()
    kept = _files(folder)
    assert client.sessions.database in kept
    for path, content in kept.items():
        assert SUBJECT.encode() not in content, path
        assert SUBJECT not in str(path)
    assert SUBJECT not in str(binding)


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_i2_another_subject_is_told_the_same_as_for_nothing(client: Client) -> None:
    await client.granted("r1")
    foreign = await refused(client.find(subject="somebody-else"), Reason.NOT_FOUND)
    missing = await refused(client.find(conversation="c2"), Reason.NOT_FOUND)
    assert (foreign.message, foreign.metadata, foreign.details) == (missing.message, missing.metadata, missing.details)
    cleared = await client.begin_clear(subject="somebody-else")
    assert not cleared.closing
    assert not cleared.HasField("binding")
    assert (await client.find()).active.run_id == "r1"


async def test_i2_without_a_subject_nothing_is_found(client: Client) -> None:
    await client.granted("r1")
    await refused(client.find(subject=None), Reason.UNAUTHENTICATED)  # type: ignore[arg-type]  # the missing subject is the test


async def test_i3_fifty_raced_first_turns_give_one_binding_and_one_run(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    answers = await asyncio.gather(*(clients[n % 2].reserve(f"r{n}") for n in range(50)))
    granted = [answer for answer in answers if answer.outcome == GRANTED]
    assert len(granted) == 1
    winner = granted[0].run_id
    assert all(answer.outcome == OCCUPIED and answer.run_id == winner for answer in answers if answer is not granted[0])
    assert len({answer.binding.binding_id for answer in answers}) == 1
    assert granted[0].binding.turn == 1
    assert granted[0].binding.runtime_generation == 1
    assert (await clients[1].find()).turn == 1


async def test_i3_in_each_of_many_conversations_one_of_two_replicas_is_first(start: Start) -> None:
    # Within a process starts of one conversation stand in line; here the two of each pair are in different ones.
    clients = [await start("a"), await start("b")]
    pairs = await asyncio.gather(
        *(asyncio.gather(*(clients[n].reserve(f"r{n}", f"c{c}") for n in (0, 1))) for c in range(60))
    )
    for number, pair in enumerate(pairs):
        assert sorted(answer.outcome for answer in pair) == [GRANTED, OCCUPIED]
        binding = await clients[0].find(f"c{number}")
        assert {answer.run_id for answer in pair} == {binding.active.run_id}
        assert binding.turn == 1


async def test_i6_fifty_raced_repeats_of_one_request_are_one_run(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    answers = await asyncio.gather(*(clients[n % 2].reserve(f"r{n}", key="same") for n in range(50)))
    assert sorted(answer.outcome for answer in answers) == [GRANTED] + [EXISTING] * 49
    assert len({answer.run_id for answer in answers}) == 1


async def test_i6_fifty_raced_starts_stand_in_line_and_each_gets_one_turn(start: Start) -> None:
    clients = [await start("a", max_waiting_turns=64), await start("b", max_waiting_turns=64)]
    answers = await asyncio.gather(*(clients[n % 2].reserve(f"r{n}", policy=ENQUEUE) for n in range(50)))
    assert sorted(answer.outcome for answer in answers) == [GRANTED] + [WAITING] * 49
    binding = await clients[0].find()
    line = [binding.active.run_id, *(place.run_id for place in binding.waiting)]
    assert sorted(line) == sorted(f"r{n}" for n in range(50))
    for turn, run_id in enumerate(line, start=1):
        assert binding.active.run_id == run_id
        assert binding.turn == binding.runtime_generation == turn
        binding = (await clients[turn % 2].release(binding.binding_id, run_id)).binding
    assert not binding.HasField("active")


async def test_i4_a_binding_keeps_its_pin_until_clear(client: Client) -> None:
    binding = await client.granted("r1", version=3)
    assert (await client.reserve("r2", version=4)).binding.pin.agent_version == 3
    await client.release(binding.binding_id, "r1")
    assert (await client.granted("r3", version=5)).pin.agent_version == 3
    await client.release(binding.binding_id, "r3")
    await client.begin_clear()
    await client.finish_clear(binding.binding_id)
    assert not (await client.find()).HasField("pin")
    assert (await client.granted("r4", version=5)).pin.agent_version == 5
    assert (await client.get(binding.binding_id)).binding.pin.agent_version == 3


async def test_the_names_are_kept_for_display(client: Client) -> None:
    binding = await client.granted("r1", conversation="team:7")
    assert (binding.agent_id, binding.conversation_id, binding.epoch) == (client.agent, "team:7", 1)
    assert "team:7" not in binding.binding_id


async def test_i32_a_wrong_setting_stops_the_start_and_is_named(start: Start) -> None:
    with pytest.raises(AssertionError, match="HARNESS_CAPABILITY_VERIFY_KEYS") as caught:
        await start("bad", capability_verify_keys="canary-of-a-key")
    assert "canary-of-a-key" not in str(caught.value)
