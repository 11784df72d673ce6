"""Interrupts on the binding, over the wire: stored with the head, consumed with the slot, given back with the release (run protocol; I24, I25)."""

import asyncio
import signal
from typing import Any

from google.protobuf import json_format

from harness.event.v1 import payload_pb2
from harness.session.v1 import binding_pb2
from harness.session.v1 import session_service_pb2 as session
from services.common.errors import Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import (
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

PENDING = session.RESERVE_OUTCOME_INTERRUPT_PENDING
ANSWERED = session.RESERVE_OUTCOME_ANSWERED
OTHERWISE = session.RESERVE_OUTCOME_ANSWERED_OTHERWISE
NOT_PENDING = session.RESERVE_OUTCOME_NOT_PENDING
CHANGED = session.RESERVE_OUTCOME_CHANGED
FIELD = {"name": "city", "type": "FORM_FIELD_TYPE_STRING", "required": True}
REQUESTED = {
    "interrupt_id": "i1",
    "revision": 1,
    "interrupt_type": "INTERRUPT_TYPE_FORM_INPUT",
    "prompt": "Where?",
    "fields": [FIELD],
}


def asked() -> binding_pb2.Interrupt:
    requested = json_format.ParseDict(REQUESTED, payload_pb2.InterruptRequested())
    return binding_pb2.Interrupt(requested=requested, namespace=["helper"], reason="It waits.")


def answer(revision: int = 1, digest: str = "aa" * 10, **more: Any) -> session.InterruptAnswer:
    fields: dict[str, Any] = {"run_id": "r1", "interrupt_id": "i1", "revision": revision, "decision_digest": digest}
    return session.InterruptAnswer(**(fields | more))


async def interrupted(client: Client, run_id: str = "r1") -> binding_pb2.Binding:
    """The binding after a run that asked has left."""
    binding = await client.granted(run_id)
    await client.commit(fence_of(binding), interrupt=asked())
    return (await client.release(binding.binding_id, run_id, interrupted=True)).binding


async def test_i24_what_was_asked_is_stored_with_the_head_and_survives_a_kill(start: Start) -> None:
    client = await start()
    before = await interrupted(client)
    assert before.head.run_id == before.interrupt.run_id == "r1"
    assert before.interrupt.requested == asked().requested
    assert (list(before.interrupt.namespace), before.interrupt.reason) == (["helper"], "It waits.")
    assert (before.interrupt.revision, before.interrupt.consumed_by) == (1, "")
    await client.sessions.stop(signal.SIGKILL)
    restarted = await start()
    assert await restarted.find() == before


async def test_i10_an_executor_that_was_overtaken_asks_nothing(client: Client) -> None:
    binding = await client.granted("r1")
    await client.claim(binding.binding_id, "r1", 2)
    await refused(client.commit(fence_of(binding), interrupt=asked()))
    assert not (await client.find()).HasField("interrupt")


async def test_i24_raced_answers_consume_it_once(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    binding = await interrupted(clients[0])
    raced = await asyncio.gather(
        *(clients[n % 2].reserve(f"n{n}", answers=answer(digest=f"{n % 3}a" * 10)) for n in range(24))
    )
    (won,) = [number for number, one in enumerate(raced) if one.outcome == GRANTED]
    for number, one in enumerate(raced):
        assert one.run_id == f"n{won}"
        if number != won:
            assert one.outcome == (ANSWERED if number % 3 == won % 3 else OTHERWISE)
    found = await clients[1].find()
    assert (found.active.run_id, found.turn) == (f"n{won}", binding.turn + 1)
    assert (found.interrupt.consumed_by, found.interrupt.decision_digest) == (f"n{won}", f"{won % 3}a" * 10)


async def test_i25_only_the_interrupt_that_is_pending_is_answered(client: Client) -> None:
    before = await interrupted(client)
    for wrong in (answer(2), answer(run_id="r2"), answer(interrupt_id="i2")):
        assert (await client.reserve("n1", answers=wrong)).outcome == NOT_PENDING
    assert await client.find() == before
    assert (await client.reserve("n1", answers=answer(), expected_revision=before.revision - 1)).outcome == CHANGED
    assert (await client.reserve("n1", answers=answer(), expected_revision=before.revision)).outcome == GRANTED


async def test_the_run_that_asked_has_to_leave_first(client: Client) -> None:
    binding = await client.granted("r1")
    await client.commit(fence_of(binding), interrupt=asked())
    answered = await client.reserve("n1", answers=answer())
    assert (answered.outcome, answered.run_id) == (OCCUPIED, "r1")
    assert (await client.reserve("q1", policy=ENQUEUE)).outcome == WAITING
    released = (await client.release(binding.binding_id, "r1", interrupted=True)).binding
    # Release: nobody moves up while a decision is awaited, and the answer goes before all who wait.
    assert not released.HasField("active")
    assert (await client.reserve("n1", answers=answer())).outcome == GRANTED
    assert (await client.reserve("n2", key="key-n1", answers=answer(digest="bb" * 10))).outcome == EXISTING
    after = (await client.release(binding.binding_id, "n1")).binding
    assert after.active.run_id == "q1"


async def test_a_plain_start_is_refused_and_one_that_supersedes_dismisses(client: Client) -> None:
    await interrupted(client)
    for policy in (REJECT, ENQUEUE):
        answered = await client.reserve("n1", policy=policy)
        assert (answered.outcome, answered.run_id) == (PENDING, "r1")
    assert (await client.reserve("n1", policy=INTERRUPT)).outcome == GRANTED
    assert not (await client.find()).HasField("interrupt")
    assert (await client.reserve("n2", answers=answer())).outcome == NOT_PENDING


async def test_i24_a_late_copy_of_the_asking_runs_own_reservation_dismisses_nothing(client: Client) -> None:
    # A replica that was stopped with the call in hand, which was then made at another one.
    binding = await client.granted("r1", policy=INTERRUPT)
    await client.commit(fence_of(binding), interrupt=asked())
    before = (await client.release(binding.binding_id, "r1", interrupted=True)).binding
    late = await client.reserve("r1", policy=INTERRUPT)
    assert (late.outcome, late.run_id) == (EXISTING, "r1")
    assert await client.find() == before


async def test_one_that_supersedes_and_waits_dismisses_as_it_moves_up(client: Client) -> None:
    binding = await client.granted("r1")
    await client.commit(fence_of(binding), interrupt=asked())
    assert (await client.reserve("q1", policy=INTERRUPT)).outcome == WAITING
    assert (await client.find()).HasField("interrupt")
    released = (await client.release(binding.binding_id, "r1", interrupted=True)).binding
    assert released.active.run_id == "q1"
    assert not released.HasField("interrupt")


async def test_a_run_that_asked_and_ended_otherwise_takes_it_along(client: Client) -> None:
    binding = await client.granted("r1")
    await client.commit(fence_of(binding), interrupt=asked())
    released = (await client.release(binding.binding_id, "r1")).binding
    assert not released.HasField("interrupt")
    assert (await client.reserve("n1")).outcome == GRANTED


async def test_a_resume_that_was_never_issued_gives_it_back_with_another_revision(client: Client) -> None:
    binding = await interrupted(client)
    assert (await client.reserve("n1", answers=answer())).outcome == GRANTED
    given_back = (await client.release(binding.binding_id, "n1", stored=False, issued=False)).binding
    kept = given_back.interrupt
    assert (kept.revision, kept.consumed_by, kept.decision_digest) == (2, "", "")
    assert kept.requested == asked().requested
    assert (await client.reserve("n2", answers=answer())).outcome == NOT_PENDING
    assert (await client.reserve("n2")).outcome == PENDING
    assert (await client.reserve("n2", answers=answer(2))).outcome == GRANTED
    # One that was issued does not, and what was asked need not be kept any more.
    kept = (await client.release(binding.binding_id, "n2")).binding.interrupt
    assert (kept.revision, kept.consumed_by, kept.requested.interrupt_id) == (2, "n2", "i1")
    assert not kept.requested.fields
    assert (await client.reserve("n3", answers=answer(2))).outcome == ANSWERED
    assert (await client.reserve("n3", answers=answer(2, "bb" * 10))).outcome == OTHERWISE
    assert (await client.reserve("n3")).outcome == GRANTED


async def test_i5_a_clear_forgets_it(client: Client) -> None:
    binding = await interrupted(client)
    assert (await client.begin_clear()).closing
    assert (await client.reserve("n1", answers=answer())).outcome == session.RESERVE_OUTCOME_CLOSING
    await client.finish_clear(binding.binding_id)
    assert not (await client.find()).HasField("interrupt")
    assert (await client.reserve("n1", answers=answer())).outcome == NOT_PENDING
    assert (await client.reserve("n1")).outcome == GRANTED


async def test_a_malformed_answer_is_refused(client: Client) -> None:
    await interrupted(client)
    for wrong in (answer(0), answer(digest="no hex"), answer(run_id="")):
        await refused(client.reserve("n1", answers=wrong), Reason.INVALID_REQUEST)
