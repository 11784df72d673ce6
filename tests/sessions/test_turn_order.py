"""Whose turn it is, over the wire (run protocol, Start and Release; I6, I35)."""

import asyncio

from services.common.errors import Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import (
    CLOSING,
    ENQUEUE,
    EXISTING,
    GRANTED,
    INTERRUPT,
    OCCUPIED,
    REJECT,
    WAITING,
    Client,
    fence_of,
    refused,
)


async def test_the_line_is_in_order_and_interrupts_go_before_all_others(client: Client) -> None:
    binding = await client.granted("r0")
    for run_id, policy in (("q1", ENQUEUE), ("q2", ENQUEUE), ("i1", INTERRUPT), ("i2", INTERRUPT), ("q3", ENQUEUE)):
        answer = await client.reserve(run_id, policy=policy)
        assert (answer.outcome, answer.run_id) == (WAITING, run_id)
    line = [(place.run_id, place.policy) for place in (await client.find()).waiting]
    assert line == [("i2", INTERRUPT), ("i1", INTERRUPT), ("q1", ENQUEUE), ("q2", ENQUEUE), ("q3", ENQUEUE)]
    run_id = "r0"
    for turn, following in enumerate(("i2", "i1", "q1", "q2", "q3"), start=2):
        answer = await client.release(binding.binding_id, run_id)
        assert answer.released
        assert answer.binding.active.run_id == following
        assert answer.binding.active.request_key == f"key-{following}"
        assert answer.binding.active.run_generation == 1
        assert answer.binding.turn == turn
        run_id = following
    answer = await client.release(binding.binding_id, "q3")
    assert answer.released
    assert not answer.binding.HasField("active")


async def test_reject_names_the_run_in_the_way_and_changes_nothing(client: Client) -> None:
    before = await client.granted("r1")
    for policy in (REJECT, 0):
        answer = await client.reserve("r2", policy=policy)
        assert (answer.outcome, answer.run_id) == (OCCUPIED, "r1")
        assert answer.binding == before


async def test_i35_the_line_is_bounded_for_every_policy(start: Start) -> None:
    client = await start(max_waiting_turns=2)
    binding = await client.granted("r0")
    assert (await client.reserve("q1", policy=ENQUEUE)).outcome == WAITING
    assert (await client.reserve("q2", policy=ENQUEUE)).outcome == WAITING
    for policy in (ENQUEUE, INTERRUPT):
        answer = await client.reserve("q3", policy=policy)
        assert (answer.outcome, answer.run_id) == (OCCUPIED, "r0")
    assert [place.run_id for place in (await client.find()).waiting] == ["q1", "q2"]
    assert (await client.withdraw(binding.binding_id, "q1")).withdrawn
    assert (await client.reserve("q3", policy=ENQUEUE)).outcome == WAITING


async def test_i6_the_same_key_is_the_same_run_in_the_slot_in_the_line_and_while_closing(client: Client) -> None:
    await client.granted("r1", key="k1")
    assert (await client.reserve("r2", key="k2", policy=ENQUEUE)).outcome == WAITING
    for _ in range(2):
        for key, run_id in (("k1", "r1"), ("k2", "r2")):
            for policy in (REJECT, ENQUEUE, INTERRUPT):
                before = await client.find()
                answer = await client.reserve("r9", key=key, policy=policy)
                assert (answer.outcome, answer.run_id) == (EXISTING, run_id)
                assert await client.find() == before
        await client.begin_clear()
    assert (await client.reserve("r9", key="k9")).outcome == CLOSING


async def test_i6_a_run_belongs_to_one_request(client: Client) -> None:
    await client.granted("r1", key="k1")
    await client.reserve("r2", key="k2", policy=ENQUEUE)
    for run_id in ("r1", "r2"):
        await refused(client.reserve(run_id, key="other", policy=ENQUEUE), Reason.IDEMPOTENCY_MISMATCH)


async def test_only_the_run_in_the_slot_gives_it_back(client: Client) -> None:
    binding = await client.granted("r1")
    await client.reserve("r2", policy=ENQUEUE)
    before = await client.find()
    for run_id in ("r2", "r9"):
        answer = await client.release(binding.binding_id, run_id)
        assert not answer.released
        assert answer.binding == before
    assert (await client.release(binding.binding_id, "r1")).released
    repeated = await client.release(binding.binding_id, "r1")
    assert not repeated.released
    assert repeated.binding.active.run_id == "r2"
    await refused(client.release("bnd_unknown", "r1"), Reason.NOT_FOUND)


async def test_withdrawing_takes_one_run_out_of_the_line_and_never_out_of_the_slot(client: Client) -> None:
    binding = await client.granted("r1")
    for run_id in ("q1", "q2", "q3"):
        await client.reserve(run_id, policy=ENQUEUE)
    assert not (await client.withdraw(binding.binding_id, "r1")).withdrawn
    assert (await client.withdraw(binding.binding_id, "q2")).withdrawn
    again = await client.withdraw(binding.binding_id, "q2")
    assert not again.withdrawn
    assert [place.run_id for place in again.binding.waiting] == ["q1", "q3"]
    assert again.binding.active.run_id == "r1"


async def test_an_epoch_is_used_once_a_run_of_it_was_stored(client: Client) -> None:
    binding = await client.granted("r1")
    assert not binding.used
    assert not (await client.release(binding.binding_id, "r1", stored=False)).binding.used
    await client.granted("r2")
    assert (await client.release(binding.binding_id, "r2")).binding.used
    await client.granted("r3")
    # A later reservation that came to nothing takes no use back.
    assert (await client.release(binding.binding_id, "r3", stored=False)).binding.used


async def test_the_runtime_generation_rises_with_the_slot_while_no_runtime_is_recorded(client: Client) -> None:
    first = await client.granted("r1")
    assert first.runtime_generation == 1
    await client.release(first.binding_id, "r1")
    second = await client.granted("r2")
    assert second.runtime_generation == 2
    await client.record_runtime(fence_of(second))
    await client.reserve("r3", policy=ENQUEUE)
    third = (await client.release(first.binding_id, "r2")).binding
    assert (third.active.run_id, third.runtime_generation, third.turn) == ("r3", 2, 3)
    await client.release(first.binding_id, "r3")
    fourth = await client.granted("r4")
    assert (fourth.runtime_generation, fourth.turn) == (2, 4)
    advanced = await client.advance(fence_of(fourth))
    assert advanced.runtime_generation == 3
    assert not advanced.HasField("runtime_ref")
    # Nobody created the runtime of generation 3: the next run gets a generation that is its own.
    await client.reserve("r5", policy=ENQUEUE)
    assert (await client.release(first.binding_id, "r4")).binding.runtime_generation == 4


async def test_i27_the_head_records_the_runtime_unless_one_is_recorded(client: Client) -> None:
    first = await client.granted("r1")
    await client.commit(fence_of(first), incarnation="inc1")
    assert (await client.find()).runtime_ref.incarnation == "inc1"
    await client.release(first.binding_id, "r1")
    second = await client.granted("r2")
    assert (second.runtime_generation, second.runtime_ref.incarnation) == (1, "inc1")
    await client.commit(fence_of(second), incarnation="inc2")
    assert (await client.find()).runtime_ref.incarnation == "inc1"


async def test_a_head_without_a_runtime_leaves_none_recorded(client: Client) -> None:
    first = await client.granted("r1")
    await client.commit(fence_of(first))
    assert not (await client.find()).HasField("runtime_ref")
    await client.release(first.binding_id, "r1")
    assert (await client.granted("r2")).runtime_generation == 2


async def test_i10_a_claim_needs_a_higher_generation(client: Client) -> None:
    binding = await client.granted("r1")
    await client.reserve("r2", policy=ENQUEUE)
    assert (await client.claim(binding.binding_id, "r1", 3)).active.run_generation == 3
    before = await client.find()
    for run_id, run_generation in (("r1", 3), ("r1", 2), ("r2", 9), ("r9", 9)):
        await refused(client.claim(binding.binding_id, run_id, run_generation))
    assert await client.find() == before


async def test_i10_of_raced_claims_of_one_generation_one_wins(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    binding = await clients[0].granted("r1")
    calls = [clients[n % 2].claim(binding.binding_id, "r1", 2) for n in range(16)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert (await clients[1].find()).active.run_generation == 2


async def test_i10_a_process_that_knew_an_older_binding_lets_the_store_decide(start: Start) -> None:
    here, there = await start("a"), await start("b")
    binding = await here.granted("r1")
    old = fence_of(binding)
    await there.claim(binding.binding_id, "r1", 2)
    await refused(here.commit(old))  # by what `here` wrote last, the fence is current
    assert not (await there.find()).HasField("head")
    await there.release(binding.binding_id, "r1")
    await here.granted("r2")
    await there.release(binding.binding_id, "r2")
    await there.granted("r3")
    # By what `here` wrote last r3 is not in the slot, and it is.
    assert (await here.release(binding.binding_id, "r3")).released


async def test_what_may_need_help_is_listed_page_by_page(start: Start) -> None:
    client = await start()
    for n in range(7):
        binding = await client.granted(f"r{n}", conversation=f"c{n}")
        if n == 5:
            await client.release(binding.binding_id, "r5")
            await client.begin_clear("c5")
        if n == 6:
            await client.release(binding.binding_id, "r6")
    seen: list[str] = []
    token = ""
    while True:
        page = await client.unsettled(page_size=2, page_token=token)
        seen += [binding.conversation_id for binding in page.bindings]
        assert len(page.bindings) <= 2
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"c{n}" for n in range(6)]
    oldest = (await client.find("c0")).active.since
    early = await client.unsettled(before=oldest.ToMilliseconds() / 1000)
    assert not early.bindings
    await refused(client.unsettled(page_token="no token"), Reason.INVALID_REQUEST)


async def test_a_repeated_start_after_release_is_a_new_reservation(client: Client) -> None:
    binding = await client.granted("r1", key="k1")
    await client.release(binding.binding_id, "r1")
    # The runs, not the bindings, remember requests that ended (run protocol, Start 2).
    assert (await client.reserve("r2", key="k1")).outcome == GRANTED
