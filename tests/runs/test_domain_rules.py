"""The pure decisions of the runs service: claims, leases, prompts, starts, ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from services.common.errors import HarnessError, Reason
from services.runs import ending, intent, start
from services.runs.claim import Refused, Taker, Why, claim
from services.runs.intent import CancelReason, Failure
from services.runs.lease import HeldLease, LeaseWatch
from services.runs.prompt import MAX_PROMPT_BYTES, PromptTooLarge, compile_prompt
from services.runs.queries import is_over
from services.runs.run import Issued, Run, Status, from_document, to_document, tombstone
from services.runs.start import Occupant

ME = Taker("hld_me", 2_000)


def run(**changes: Any) -> Run:
    plain = Run(
        run_id="run_1",
        owner="own_1",
        agent_id="agent",
        conversation_id="c",
        request_key="run_1",
        client_request_id="",
        body_digest="d",
        binding_id="bnd_1",
        epoch=1,
        turn=1,
        agent_version=1,
        harness_id="reference",
        profile_id="default",
        policy="reject",
        status=Status.QUEUED,
        created_at=1_000,
        updated_at=1_000,
    )
    return replace(plain, **changes)


RUNNING = run(status=Status.RUNNING, run_generation=1, holder="hld_other", renewals=3)


class TestClaim:
    def test_a_queued_run_is_taken_first_by_generation_one(self) -> None:
        taken = claim(run(), Why.FIRST, ME)
        assert isinstance(taken, Run)
        assert (taken.status, taken.run_generation, taken.holder, taken.ending) == (Status.RUNNING, 1, "hld_me", False)

    def test_a_running_run_is_not_taken_first(self) -> None:
        assert claim(RUNNING, Why.FIRST, ME) is Refused.HELD

    def test_i10_a_takeover_raises_the_generation(self) -> None:
        taken = claim(RUNNING, Why.DEAD, ME, seen=(1, 3))
        assert isinstance(taken, Run)
        assert (taken.run_generation, taken.renewals, taken.holder) == (2, 0, "hld_me")

    @pytest.mark.parametrize("seen", [(1, 2), (0, 3), (2, 3)])
    def test_a_lease_that_moved_since_it_was_seen_is_alive(self, seen: tuple[int, int]) -> None:
        assert claim(RUNNING, Why.DEAD, ME, seen=seen) is Refused.HELD

    def test_two_helpers_do_not_outbid_each_other(self) -> None:
        ending_run = claim(RUNNING, Why.FORCE, ME)
        assert isinstance(ending_run, Run)
        assert ending_run.ending
        assert claim(ending_run, Why.FORCE, Taker("hld_third", 3_000)) is Refused.HELD
        assert isinstance(claim(ending_run, Why.DEAD, Taker("hld_third", 9_000), seen=(2, 0)), Run)

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.INTERRUPTED])
    @pytest.mark.parametrize("why", list(Why))
    def test_an_ended_run_is_taken_by_nobody(self, status: Status, why: Why) -> None:
        assert claim(run(status=status), why, ME) is Refused.ENDED

    def test_i12_the_first_intent_stands(self) -> None:
        first = intent.cancelled(CancelReason.CLIENT_REQUEST, 1)
        taken = claim(replace(RUNNING, intent=first), Why.FORCE, ME, intent=intent.cancelled(CancelReason.DEADLINE, 2))
        assert isinstance(taken, Run)
        assert taken.intent == first


class TestLease:
    def test_an_observer_grants_a_whole_ttl_from_its_own_first_look(self) -> None:
        watch = LeaseWatch(5.0)
        assert not watch.is_dead(RUNNING, 100.0)
        assert not watch.is_dead(RUNNING, 104.9)
        assert watch.is_dead(RUNNING, 105.0)

    def test_a_renewal_starts_the_time_again(self) -> None:
        watch = LeaseWatch(5.0)
        watch.is_dead(RUNNING, 100.0)
        assert not watch.is_dead(replace(RUNNING, renewals=4), 104.0)
        assert not watch.is_dead(replace(RUNNING, renewals=4), 108.9)
        assert watch.is_dead(replace(RUNNING, renewals=4), 109.0)

    def test_i33_a_run_that_was_handed_over_is_free_at_once(self) -> None:
        assert LeaseWatch(5.0).is_dead(replace(RUNNING, holder=""), 0.0)

    def test_i35_only_what_was_last_seen_is_remembered(self) -> None:
        watch = LeaseWatch(5.0)
        watch.is_dead(RUNNING, 0.0)
        watch.keep_only([])
        assert not watch.is_dead(RUNNING, 50.0)

    def test_a_holder_stops_before_an_observer_may_take_over(self) -> None:
        lease = HeldLease(5.0, sent_at=10.0)
        assert not lease.is_due(11.4)
        assert lease.is_due(11.5)
        assert not lease.must_stop(12.9)
        assert lease.must_stop(13.0)


class TestPrompt:
    def test_variables_and_context(self) -> None:
        assert compile_prompt("Hi {{name}}, {{ name }}.", {"name": "Ada"}, "") == "Hi Ada, {{ name }}."
        assert (
            compile_prompt("Hi.", {}, "today is Monday")
            == "Hi.\n\n<client-system-context>\ntoday is Monday\n</client-system-context>"
        )

    def test_values_are_text_and_not_templates(self) -> None:
        assert compile_prompt("{{a}}", {"a": "{{b}}", "b": "no"}, "") == "{{b}}"
        assert compile_prompt("x", {"b": "no"}, "{{b}}").endswith("{{b}}\n</client-system-context>")

    def test_i35_a_prompt_beyond_its_bound_is_refused(self) -> None:
        with pytest.raises(PromptTooLarge):
            compile_prompt("{{a}}" * 3, {"a": "é" * (MAX_PROMPT_BYTES // 4)}, "")


class TestStart:
    body = run_service_pb2.StartRunRequest(agent_id="a", conversation_id="c", message="m", client_request_id="r1")

    def test_i6_the_same_request_has_the_same_key_and_digest(self) -> None:
        one, two = start.request_of("own", self.body), start.request_of("own", self.body)
        assert one == two
        assert one.key_for("run_x") == two.key_for("run_y")

    def test_i6_another_body_is_a_mismatch(self) -> None:
        other = run_service_pb2.StartRunRequest()
        other.CopyFrom(self.body)
        other.message = "n"
        request = start.request_of("own", other)
        stored = run(body_digest=start.request_of("own", self.body).digest)
        with pytest.raises(HarnessError) as refused:
            start.same_request(stored, request)
        assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH

    def test_an_unnamed_request_is_keyed_by_its_run_and_no_client_can_name_that_key(self) -> None:
        unnamed = run_service_pb2.StartRunRequest(agent_id="a", conversation_id="c", message="m")
        assert start.request_of("own", unnamed).key_for("run_1") == "run_1"
        named = run_service_pb2.StartRunRequest(
            agent_id="a", conversation_id="c", message="m", client_request_id="run_1"
        )
        assert start.request_of("own", named).key_for("run_2") != "run_1"

    def test_the_newest_of_those_that_interrupt_sends_the_others_away(self) -> None:
        older = run(run_id="run_a", policy="interrupt", created_at=1)
        newer = run(run_id="run_b", policy="interrupt", created_at=2)
        assert start.newest_interrupting([older, newer]) == start.newest_interrupting([newer, older]) == newer
        assert start.newest_interrupting([older, run(created_at=3)]) == older
        assert start.newest_interrupting([run(), run(policy="enqueue")]) is None

    def test_what_is_in_the_way(self) -> None:
        def state(found: Run | None, *, terminal: bool = False, age: float = 0.0) -> Occupant:
            return start.occupant_state(found, has_terminal=terminal, since=100.0, now=100.0 + age, grace=2.0)

        assert state(RUNNING) is Occupant.WORKING
        assert state(RUNNING, terminal=True) is Occupant.ENDED
        assert state(run(status=Status.COMPLETED)) is Occupant.ENDED
        assert state(None, age=1.9) is Occupant.UNSTORED
        assert state(None, age=2.0) is Occupant.ABANDONED
        assert state(tombstone("run_1", "bnd", 1, 0, 1)) is Occupant.ENDED


class TestEnding:
    def test_i11_what_may_have_had_effects_is_not_offered_for_a_retry(self) -> None:
        failure = intent.failed(Failure("capacity", "capacity", "Full.", retryable=True), 1)
        none = ending.terminal_of_intent(failure, error_pb2.SIDE_EFFECT_STATUS_NONE).payload.run_failed
        possible = ending.terminal_of_intent(failure, error_pb2.SIDE_EFFECT_STATUS_POSSIBLE).payload.run_failed
        assert (none.retryable, possible.retryable) == (True, False)

    def test_side_effects_are_never_less_than_the_log_shows(self) -> None:
        none = error_pb2.SIDE_EFFECT_STATUS_NONE
        assert ending.side_effects(issued=False, known=False) == none
        assert ending.side_effects(issued=True, known=False) == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
        assert ending.side_effects(issued=True, known=False, reported=none) == none
        assert ending.side_effects(issued=True, known=True, reported=none) == error_pb2.SIDE_EFFECT_STATUS_KNOWN
        draft = event_pb2.EventDraft(
            payload=payload_pb2.EventPayload(run_failed=payload_pb2.RunFailed(code="x", side_effect_status=none))
        )
        told = ending.with_known_effects(draft, known=True)
        assert told.payload.run_failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_KNOWN
        assert draft.payload.run_failed.side_effect_status == none

    @pytest.mark.parametrize("reason", list(CancelReason))
    def test_every_cancel_reason_has_its_terminal(self, reason: CancelReason) -> None:
        draft = ending.terminal_of_intent(intent.cancelled(reason, 1), error_pb2.SIDE_EFFECT_STATUS_NONE)
        name = payload_pb2.CancelReason.Name(draft.payload.run_cancelled.reason)
        assert name == f"CANCEL_REASON_{reason.value.upper()}"


_intents = st.one_of(
    st.none(),
    st.builds(intent.cancelled, st.sampled_from(CancelReason), st.integers(0, 2**50)),
    st.builds(
        intent.failed,
        st.builds(
            Failure,
            st.just("code"),
            st.sampled_from(["capacity", "protocol"]),
            st.text(max_size=20),
            st.booleans(),
            st.one_of(st.none(), st.integers(1, 9)),
        ),
        st.integers(0, 2**50),
    ),
)


@given(
    st.builds(
        run,
        status=st.sampled_from(Status),
        intent=_intents,
        issued=st.one_of(st.none(), st.builds(Issued, st.text(), st.text(), st.integers(1, 9))),
        deadline_at=st.one_of(st.none(), st.integers(0, 2**50)),
        turn=st.integers(0, 9),
        ending=st.booleans(),
        owner=st.one_of(st.none(), st.just("own")),
        rev=st.integers(0, 5),
    )
)
def test_a_run_is_read_back_as_it_was_written(stored: Run) -> None:
    document = to_document(stored)
    assert from_document(document) == stored


def test_a_cursor_at_the_end_of_a_run_whose_events_are_gone_is_not_expired() -> None:
    gone = run(status=Status.COMPLETED, last_sequence=7, trimmed=True)
    assert is_over(gone, 7)
    assert is_over(gone, 900)
    with pytest.raises(HarnessError) as expired:
        is_over(gone, 6)
    assert expired.value.reason is Reason.CURSOR_EXPIRED
    # Of a log that is there, the log says what is after a cursor.
    assert not is_over(replace(gone, trimmed=False), 7)
