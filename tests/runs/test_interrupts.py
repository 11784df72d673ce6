"""Interrupts and resumes over real services: stored before shown, consumed once, gone on with in a new run (run protocol, Resume; I24, I25)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.catalog.v1 import agent_pb2, resolution_service_pb2
from harness.common.v1 import capability_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_pb2, run_service_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.ids import new_run_id
from services.runs.plan import Plan
from services.runs.start import request_of
from tests.runs.mesh import KILL, Client, Mesh, fence_of, kind, text

COMPLETED, INTERRUPTED, CANCELLED, FAILED = (
    run_pb2.RUN_STATUS_COMPLETED,
    run_pb2.RUN_STATUS_INTERRUPTED,
    run_pb2.RUN_STATUS_CANCELLED,
    run_pb2.RUN_STATUS_FAILED,
)
ENQUEUE, INTERRUPT = binding_pb2.CONFLICT_POLICY_ENQUEUE, binding_pb2.CONFLICT_POLICY_INTERRUPT
FORM = {"form": [{"name": "city", "required": True}, {"name": "size", "type": "choice", "options": ["s", "m"]}]}
CALLS = {
    "approve": [
        {"id": "c1", "name": "mail", "arguments": {"to": "a"}, "allowed": ["approve", "reject", "edit"]},
        {"id": "c2", "name": "pay", "arguments": {"sum": 3}},
    ]
}
ID = "interrupt-1"


def asks(what: dict[str, Any], *after: list[dict[str, Any]]) -> dict[str, Any]:
    """Scripts that say something, ask, and then tell what was decided."""
    return {"scripts": [[{"text": "before"}, {"interrupt": what}], *(after or ([{"decision": True}],))]}


def decided(events: list[event_pb2.Event]) -> Any:
    """What the script after an interrupt was told."""
    return json.loads(text(events))


async def asked(client: Client, agent: str, what: dict[str, Any] = FORM, conversation: str = "c") -> run_pb2.Run:
    """A run that ended with an interrupt, and whose slot is free."""
    run = await client.start(agent, asks(what), conversation)
    assert (await client.ended(run.run_id)).status == INTERRUPTED
    await client.settled(agent, conversation)
    return run


async def refused(work: Any, reason: Reason) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        await work
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_a_form_is_asked_shown_and_answered(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, asks(FORM), "c", context="today is Monday")
    events = await client.events(run.run_id)
    assert [kind(event) for event in events][-2:] == ["interrupt_requested", "run_interrupted"]
    assert text(events) == "before"
    state = await client.interrupt_state(agent, "c")
    assert state is not None
    assert (state.run_id, state.interrupt_id, state.revision) == (run.run_id, ID, 1)
    assert [field.name for field in state.fields] == ["city", "size"]
    assert state.binding_id == run.binding_id
    resumed = await client.resume(run.run_id, ID, form={"city": "Rome", "size": "m"})
    assert (resumed.resumed_from, resumed.agent_version) == (run.run_id, 1)
    events = await client.events(resumed.run_id)
    assert events[0].payload.run_started.resumed_from == run.run_id
    assert decided(events) == {"form": {"city": "Rome", "size": "m"}}
    assert (await client.get(resumed.run_id)).status == COMPLETED
    assert await client.interrupt_state(agent, "c") is None


async def test_i25_calls_are_decided_one_by_one(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent, CALLS)
    decisions = {"c2": {"reject": "too dear"}, "c1": {"edit": {"to": "b"}}}
    resumed = await client.resume(run.run_id, ID, calls=decisions)
    assert decided(await client.events(resumed.run_id)) == {
        "calls": {"c1": {"edit": {"to": "b"}}, "c2": {"reject": "too dear"}}
    }
    again = await client.resume(run.run_id, ID, calls=dict(reversed(decisions.items())))
    assert again.run_id == resumed.run_id  # the order in which calls are named is no other decision


@pytest.mark.parametrize(
    ("what", "answer", "path"),
    [
        (FORM, {"form": {}}, "form_values.city"),
        (FORM, {"form": {"city": 3}}, "form_values.city"),
        (FORM, {"form": {"city": ""}}, "form_values.city"),
        (FORM, {"form": {"city": "x", "size": "xl"}}, "form_values.size"),
        (FORM, {"form": {"city": "x", "more": 1}}, "form_values.more"),
        (FORM, {"form": {"city": {"deep": [[[[[[[[1]]]]]]]]}}}, "form_values"),
        (FORM, {"calls": {"c1": {"approve": True}}}, "tool_decisions"),
        (CALLS, {"form": {"city": "x"}}, "form_values"),
        (CALLS, {"calls": {"c1": {"approve": True}}}, "tool_decisions.decisions"),
        (
            CALLS,
            {"calls": {"c1": {"approve": True}, "c3": {"approve": True}}},
            "tool_decisions.decisions[1].tool_call_id",
        ),
        (CALLS, {"calls": {"c1": {"approve": True}, "c2": {"edit": {"sum": 4}}}}, "tool_decisions.decisions[1].edit"),
        (
            CALLS,
            {"calls": {"c1": {"edit": {"to": "x" * 200_000}}, "c2": {"approve": True}}},
            "tool_decisions.decisions[0].edit",
        ),
    ],
)
async def test_i25_a_decision_that_does_not_fit_is_refused_and_consumes_nothing(
    client: Client, what: dict[str, Any], answer: dict[str, Any], path: str
) -> None:
    agent = await client.agent()
    run = await asked(client, agent, what)
    error = await refused(client.resume(run.run_id, ID, **answer), Reason.INVALID_REQUEST)
    assert path in [issue.path for issue in error.details]
    assert await client.interrupt_state(agent, "c") is not None


async def test_i24_the_same_decision_again_is_the_same_run_and_another_is_a_conflict(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    answers: list[dict[str, Any]] = [{"form": {"city": "Rome"}}, {"form": {"city": "Oslo"}}, {}]
    raced = await asyncio.gather(
        *(client.resume(run.run_id, ID, **dict(answers[number % 3])) for number in range(30)), return_exceptions=True
    )
    runs = {one.run_id for one in raced if isinstance(one, run_pb2.Run)}
    assert len(runs) == 1
    for one in raced:
        if isinstance(one, HarnessError):
            assert (one.reason, one.metadata.get("run_id")) == (Reason.HARNESS_SESSION_CONFLICT, *runs), one
    won = {number % 3 for number, one in enumerate(raced) if isinstance(one, run_pb2.Run)}
    assert len(won) == 1
    (resumed,) = runs
    await client.events(resumed)
    await client.settled(agent, "c")
    # Also when it is long over, and under another name.
    again = await client.resume(run.run_id, ID, client_request_id="later", **dict(answers[won.pop()]))
    assert again.run_id == resumed
    assert len((await client.list(agent_id=agent)).runs) == 2


async def test_i24_the_same_name_with_another_decision_is_a_mismatch(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    resumed = await client.resume(run.run_id, ID, client_request_id="n", form={"city": "Rome"})
    await client.events(resumed.run_id)
    assert (await client.resume(run.run_id, ID, client_request_id="n", form={"city": "Rome"})).run_id == resumed.run_id
    await refused(client.resume(run.run_id, ID, client_request_id="n"), Reason.IDEMPOTENCY_MISMATCH)
    await refused(client.start(agent, "hello", "c", client_request_id="n"), Reason.IDEMPOTENCY_MISMATCH)


async def test_i25_what_is_not_asked_is_not_answered(client: Client, mesh: Mesh) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    stranger = Client(mesh)
    try:
        await refused(stranger.resume(run.run_id, ID), Reason.NOT_FOUND)
        assert await stranger.interrupt_state(agent, "c") is None
    finally:
        await stranger.close()
    await refused(client.resume(run.run_id, "interrupt-2"), Reason.HARNESS_SESSION_CONFLICT)
    stale = await refused(client.resume(run.run_id, ID, revision=2), Reason.REVISION_CONFLICT)
    assert stale.metadata["revision"] == "1"
    plain = await client.start(agent, "hello", "other")
    await client.events(plain.run_id)
    await refused(client.resume(plain.run_id, ID), Reason.HARNESS_SESSION_CONFLICT)
    assert await client.interrupt_state(agent, "c") is not None


async def test_a_plain_start_while_a_decision_is_awaited_is_a_conflict_that_names_the_run(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    for policy in (binding_pb2.CONFLICT_POLICY_REJECT, ENQUEUE):
        error = await refused(client.start(agent, "hello", "c", on_conflict=policy), Reason.INTERRUPT_PENDING)
        assert (error.metadata["run_id"], error.metadata["interrupt_id"]) == (run.run_id, ID)
    assert await client.interrupt_state(agent, "c") is not None


async def test_an_interrupting_start_dismisses_what_was_asked(client: Client) -> None:
    agent = await client.agent("default")
    run = await asked(client, agent)
    other = await client.start(agent, "never mind", "c", on_conflict=INTERRUPT, client_request_id="n")
    assert (await client.ended(other.run_id)).status == COMPLETED
    assert await client.interrupt_state(agent, "c") is None
    await refused(client.resume(run.run_id, ID), Reason.HARNESS_SESSION_CONFLICT)
    assert (
        await client.start(agent, "never mind", "c", on_conflict=INTERRUPT, client_request_id="n")
    ).run_id == other.run_id


async def test_i6_who_waits_moves_up_after_the_answer_and_not_before(client: Client) -> None:
    agent = await client.agent()
    seconds = 1
    while True:
        message = {"scripts": [[{"text": "before"}, {"sleep": seconds}, {"interrupt": FORM}], [{"decision": True}]]}
        run = await client.start(agent, message, "c")
        await client.seen(run.run_id, "content_delta")
        try:
            waiting = await client.start(agent, {"n": 1}, "c", on_conflict=ENQUEUE)
            break
        except HarnessError as error:
            if error.reason is not Reason.INTERRUPT_PENDING or seconds > 20:
                raise
        # On a slow machine it may have asked already.
        seconds *= 5
        await client.settled(agent, "c")
        assert (await client.clear(agent, "c")).cleared
    await client.events(run.run_id)
    binding = await client.settled(agent, "c")
    assert [place.run_id for place in binding.waiting] == [waiting.run_id]
    resumed = await client.resume(run.run_id, ID, form={"city": "Rome"})
    await client.events(resumed.run_id)
    assert (await client.ended(waiting.run_id)).status == COMPLETED
    assert (await client.binding(agent, "c")).turn == binding.turn + 2


async def test_one_that_supersedes_and_waited_dismisses_in_its_turn(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    binding = await client.binding(agent, "c")
    assert binding.interrupt.run_id == run.run_id
    await client.start(agent, {"n": 1}, "c", on_conflict=INTERRUPT)
    settled = await client.settled(agent, "c")
    assert not settled.HasField("interrupt")


async def test_a_resumed_run_may_ask_again(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, asks(FORM, [{"decision": True}, {"interrupt": CALLS}], [{"decision": True}]), "c")
    await client.events(run.run_id)
    second = await client.resume(run.run_id, ID, form={"city": "Rome"})
    assert (await client.ended(second.run_id)).status == INTERRUPTED
    state = await client.interrupt_state(agent, "c")
    assert state is not None
    assert (state.run_id, state.interrupt_id, len(state.tool_approvals)) == (second.run_id, "interrupt-2", 2)
    # The first one is history: the same decision is its run still, another nothing.
    assert (await client.resume(run.run_id, ID, form={"city": "Rome"})).run_id == second.run_id
    await refused(client.resume(run.run_id, ID, form={"city": "Oslo"}), Reason.HARNESS_SESSION_CONFLICT)
    third = await client.resume(second.run_id, "interrupt-2")
    assert decided(await client.events(third.run_id)) == {"dismiss": True}
    assert third.resumed_from == second.run_id


async def test_what_the_adapter_cannot_resume_from_ends_the_run(client: Client) -> None:
    """An emitted interrupt of a conversation without state: the resume ends truthfully."""
    agent = await client.agent(thread={"persistence": "THREAD_PERSISTENCE_EPHEMERAL"})
    run = await client.start(agent, {"script": [{"interrupt": FORM}]}, "c")
    assert (await client.ended(run.run_id)).status == INTERRUPTED
    resumed = await client.resume(run.run_id, ID, form={"city": "Rome"})
    assert (await client.ended(resumed.run_id)).status == COMPLETED  # its runtime is there still


async def test_i5_clear_forgets_what_was_asked(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    assert (await client.clear(agent, "c")).cleared
    assert await client.interrupt_state(agent, "c") is None
    await refused(client.resume(run.run_id, ID), Reason.HARNESS_SESSION_CONFLICT)
    assert (await client.ended((await client.start(agent, "hello", "c")).run_id)).status == COMPLETED


async def test_i4_an_edited_agent_resumes_as_it_was_and_a_disabled_one_not_at_all(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    assert await client.save(agent, "faults", name="Edited") == 2
    await client.disable(agent)
    await refused(client.resume(run.run_id, ID), Reason.HARNESS_DISABLED)
    await client.save(agent, "faults", name="Again")
    resumed = await client.resume(run.run_id, ID)
    assert resumed.agent_version == 1
    assert (await client.ended(resumed.run_id)).status == COMPLETED


async def test_a_resumed_run_is_cancelled_and_ends_at_its_deadline_as_any_other(client: Client) -> None:
    for profile, reason in (
        ("faults", payload_pb2.CANCEL_REASON_CLIENT_REQUEST),
        ("brief", payload_pb2.CANCEL_REASON_DEADLINE),
    ):
        limits = {} if profile == "faults" else {"limits": {"max_run_seconds": 1}}
        agent = await client.agent(profile, **limits)
        run = None
        while (
            run is None or run.status != INTERRUPTED
        ):  # on a slow machine the turn that asks may come to its deadline as well
            run = await client.start(agent, asks(FORM, [{"text": "on"}, {"sleep": 600}]), f"c-{new_run_id()}")
            run = await client.ended(run.run_id)
        resumed = await client.resume(run.run_id, ID)
        if profile == "faults":
            await client.seen(resumed.run_id, "content_delta")
            await client.cancel(resumed.run_id)
        events = await client.events(resumed.run_id)
        assert events[-1].payload.run_cancelled.reason == reason
        # It was issued: what was decided is decided.
        assert await client.interrupt_state(agent, run.conversation_id) is None


async def test_i12_a_run_cancelled_before_it_asks_leaves_nothing_that_waits(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, {"script": [{"text": "x"}, {"sleep": 600}, {"interrupt": FORM}]}, "c")
    await client.seen(run.run_id, "content_delta")
    assert (await client.cancel(run.run_id)).status == CANCELLED
    assert await client.interrupt_state(agent, "c") is None
    assert (await client.ended((await client.start(agent, {"n": 1}, "c")).run_id)).status == COMPLETED


async def test_i24_two_subscribers_see_the_same_to_the_end(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, asks(CALLS), "c")
    first, second = await asyncio.gather(client.events(run.run_id), client.events(run.run_id))
    assert [one.SerializeToString() for one in first] == [one.SerializeToString() for one in second]


async def test_i24_an_interrupt_survives_every_process(rough_mesh: Mesh, clients: Callable[..., Client]) -> None:
    client = clients(rough_mesh)
    agent = await client.agent()
    run = await asked(client, agent, CALLS)
    for part in (rough_mesh.runs, rough_mesh.catalog, rough_mesh.reference, rough_mesh.sessions):
        part.end(KILL)
    rough_mesh.heal()
    client = clients(rough_mesh, client.subject)
    await client.get(run.run_id)  # waits for the service
    async with asyncio.timeout(90):
        while True:  # nothing tells when the catalog has found the adapter again: asked again, bounded
            try:
                resumed = await client.resume(run.run_id, ID, calls={"c1": {"approve": True}, "c2": {"approve": True}})
            except HarnessError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.05)
            else:
                break
    events = await client.events(resumed.run_id)
    assert decided(events) == {"calls": {"c1": "approve", "c2": "approve"}}


async def given_up(client: Client, agent: str, run: run_pb2.Run, **answer: Any) -> HarnessError:
    """What is said of a decision on an interrupt whose first answer was given up; asked again while the mesh says that it is worth it."""
    async with asyncio.timeout(90):
        while True:
            error = await refused_at_all(client.resume(run.run_id, ID, **answer))
            if not error.retryable:
                return error
            await asyncio.sleep(0.05)


async def refused_at_all(work: Any) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        await work
    return caught.value


async def reserved(client: Client, agent: str, run: run_pb2.Run, run_id: str, key: str = "") -> None:
    """An answer whose starter died after its reservation: nothing of it is stored."""
    binding = await client.binding(agent, "c")
    request = session_service_pb2.ReserveTurnRequest(
        agent_id=agent,
        conversation_id="c",
        run_id=run_id,
        request_key=key or f"key-{run_id}",
        pin=binding.pin,
        answers=session_service_pb2.InterruptAnswer(
            run_id=run.run_id, interrupt_id=ID, revision=1, decision_digest="ab" * 20
        ),
    )
    assert (await client.reserve_turn(request)).outcome == session_service_pb2.RESERVE_OUTCOME_GRANTED


async def test_an_answer_that_was_never_stored_is_given_up_and_gives_the_interrupt_back(client: Client) -> None:
    """Start, Died after 1: whoever meets it helps, and it is no reason for a conflict."""
    agent = await client.agent()
    run = await asked(client, agent)
    await reserved(client, agent, run, new_run_id())
    error = await given_up(client, agent, run)
    assert (error.reason, error.metadata["revision"]) == (Reason.REVISION_CONFLICT, "2")
    state = await client.interrupt_state(agent, "c")
    assert state is not None
    assert (state.revision, len(state.fields)) == (2, 2)
    resumed = await client.resume(run.run_id, ID, revision=2, form={"city": "Rome"})
    assert decided(await client.events(resumed.run_id)) == {"form": {"city": "Rome"}}


async def test_an_answer_that_was_cancelled_before_it_was_issued_gives_the_interrupt_back(client: Client) -> None:
    agent = await client.agent("single")
    run = await asked(client, agent)
    other = await client.start(agent, {"script": [{"text": "x"}, {"hang": True}]}, "other")
    await client.seen(other.run_id, "content_delta")
    try:
        resumed = await client.resume(run.run_id, ID, form={"city": "Rome"})
        assert resumed.status == run_pb2.RUN_STATUS_QUEUED
        assert (await client.cancel(resumed.run_id)).status == CANCELLED
        state = await client.interrupt_state(agent, "c")
        assert state is not None
        assert state.revision == 2
        # The same decision is that run still; it would not have to be, had it been taken anew.
        assert (await client.resume(run.run_id, ID, form={"city": "Rome"})).run_id == resumed.run_id
        await refused(client.resume(run.run_id, ID), Reason.REVISION_CONFLICT)
    finally:
        await client.cancel(other.run_id)
    again = await client.resume(run.run_id, ID, revision=2, form={"city": "Rome"})
    assert decided(await client.events(again.run_id)) == {"form": {"city": "Rome"}}


async def test_i24_an_executor_that_died_after_the_head_is_followed_by_one_that_tells_the_interrupt(
    rough_mesh: Mesh, clients: Callable[..., Client]
) -> None:
    client = clients(rough_mesh)
    agent = await client.agent()
    run = await client.start(agent, {"script": [{"text": "before"}, {"hang": True}]}, "c")
    await client.seen(run.run_id, "content_delta")
    field = payload_pb2.FormField(name="city", type=payload_pb2.FORM_FIELD_TYPE_STRING)
    requested = payload_pb2.InterruptRequested(
        interrupt_id=ID, revision=1, interrupt_type=payload_pb2.INTERRUPT_TYPE_FORM_INPUT, fields=[field]
    )
    interrupt = binding_pb2.Interrupt(requested=requested, reason="It waits.")
    await client.commit_head(fence_of(await client.binding(agent, "c")), interrupt)
    # Not told yet, so not shown and not to be answered.
    assert await client.interrupt_state(agent, "c") is None
    error = await refused(client.resume(run.run_id, ID), Reason.HARNESS_SESSION_CONFLICT)
    assert error.metadata["run_id"] == run.run_id
    rough_mesh.runs.restart()
    client = clients(rough_mesh, client.subject)
    events = await client.events(run.run_id)
    assert [kind(event) for event in events][-2:] == ["interrupt_requested", "run_interrupted"]
    assert events[-2].payload.interrupt_requested == requested
    assert events[-1].payload.run_interrupted.reason == "It waits."
    assert (await client.interrupt_state(agent, "c")) is not None
    await client.settled(agent, "c")
    # The harness knows nothing of it: the resume ends truthfully, and what was decided is decided.
    resumed = await client.resume(run.run_id, ID)
    failed = (await client.events(resumed.run_id))[-1].payload.run_failed
    assert failed.code == "interrupt_lost"
    assert await client.interrupt_state(agent, "c") is None


async def test_i24_an_intent_before_the_end_is_told_takes_the_interrupt_along(
    rough_mesh: Mesh, clients: Callable[..., Client]
) -> None:
    client = clients(rough_mesh)
    agent = await client.agent()
    run = await client.start(agent, {"script": [{"text": "before"}, {"hang": True}]}, "c")
    await client.seen(run.run_id, "content_delta")
    field = payload_pb2.FormField(name="city", type=payload_pb2.FORM_FIELD_TYPE_STRING)
    requested = payload_pb2.InterruptRequested(
        interrupt_id=ID, revision=1, interrupt_type=payload_pb2.INTERRUPT_TYPE_FORM_INPUT, fields=[field]
    )
    await client.commit_head(
        fence_of(await client.binding(agent, "c")), binding_pb2.Interrupt(requested=requested, reason="It waits.")
    )
    assert (await client.cancel(run.run_id)).status == CANCELLED
    assert not (await client.settled(agent, "c")).HasField("interrupt")
    assert (await client.ended((await client.start(agent, {"n": 1}, "c")).run_id)).status == COMPLETED


async def test_the_same_name_for_a_plain_start_never_stores_what_was_reserved_for_an_answer(client: Client) -> None:
    agent = await client.agent()
    run = await asked(client, agent)
    run_id = new_run_id()
    named = request_of("o", run_service_pb2.StartRunRequest(client_request_id="n")).named_key
    await reserved(client, agent, run, run_id, named)
    # I24: the decision that was consumed for the run is not the one in hand, nor is a message.
    await refused(client.start(agent, "hello", "c", client_request_id="n"), Reason.IDEMPOTENCY_MISMATCH)
    await refused(client.resume(run.run_id, ID, client_request_id="n"), Reason.IDEMPOTENCY_MISMATCH)


async def test_what_a_harness_does_not_claim_ends_the_run_as_unsupported(client: Client) -> None:
    """Two calls at once need another capability than one; the reference harness claims all, so the rule is asked itself."""
    one = payload_pb2.InterruptRequested(interrupt_type=payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL)
    one.tool_approvals.add(tool_call_id="a")
    two = payload_pb2.InterruptRequested(interrupt_type=payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL)
    two.tool_approvals.add(tool_call_id="a")
    two.tool_approvals.add(tool_call_id="b")
    form = payload_pb2.InterruptRequested(interrupt_type=payload_pb2.INTERRUPT_TYPE_FORM_INPUT)
    expected = {
        (): (False, False, False),
        ("interrupt.form_input",): (True, False, False),
        ("interrupt.tool_approval",): (False, True, False),
        ("interrupt.tool_approval", "interrupt.multi_tool"): (False, True, True),
    }
    for claims, answers in expected.items():
        profile = resolution_service_pb2.ResolveProfileResponse()
        for claim in claims:
            profile.descriptor.capabilities[claim].level = capability_pb2.CAPABILITY_LEVEL_EMULATED
        plan = Plan(agent_pb2.AgentVersion(), profile)
        assert (plan.may_ask(form), plan.may_ask(one), plan.may_ask(two)) == answers


async def test_i6_a_repeated_request_that_superseded_dismisses_nothing_later(client: Client) -> None:
    agent = await client.agent()
    old = await client.start(agent, {"n": 1}, "c", on_conflict=INTERRUPT, client_request_id="n")
    await client.events(old.run_id)
    await client.settled(agent, "c")
    await asked(client, agent)
    again = await client.start(agent, {"n": 1}, "c", on_conflict=INTERRUPT, client_request_id="n")
    assert again.run_id == old.run_id
    assert await client.interrupt_state(agent, "c") is not None


async def test_i6_a_request_that_had_its_run_answers_nothing(client: Client) -> None:
    agent = await client.agent()
    old = await client.start(agent, {"n": 1}, "c", client_request_id="n")
    await client.events(old.run_id)
    await client.settled(agent, "c")
    # In its second turn, so its second script asks.
    message = {"scripts": [[{"interrupt": FORM}], [{"decision": True}]]}
    run = await client.start(agent, message, "c")
    await client.events(run.run_id)
    await client.settled(agent, "c")
    state = await client.interrupt_state(agent, "c")
    assert state is not None
    await refused(client.resume(run.run_id, state.interrupt_id, client_request_id="n"), Reason.IDEMPOTENCY_MISMATCH)
    after = await client.interrupt_state(agent, "c")
    assert after is not None
    assert after.revision == 1
