"""The state machine of a run's events: rules 1–8 and bounds, one by one and over random sequences."""

import math

import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.sdk.lifecycle import (
    TERMINAL_KINDS,
    EventLimits,
    OpenState,
    ProtocolViolation,
    RunLifecycle,
    failed_draft,
    public_payload,
)
from harness.event.v1 import event_pb2, payload_pb2

SMALL = EventLimits(
    delta_bytes=16, arguments_bytes=64, open_arguments_bytes=100, open_calls=3, open_namespaces=3, remembered_calls=4
)


def draft(kind, namespace=(), **fields):
    outer = {k: fields.pop(k) for k in ("native_session_id", "pending_head") if k in fields}
    payload = json_format.ParseDict({kind: fields}, payload_pb2.EventPayload())
    return event_pb2.EventDraft(namespace=namespace, payload=payload, **outer)


def text(body, message_id="m1", namespace=()):
    return draft("content_delta", namespace, message_id=message_id, text=body)


def started(call="c1", namespace=(), **more):
    return draft("tool_started", namespace, tool_call_id=call, tool_name="t", **more)


def completed(call="c1", namespace=(), outcome=1, **more):
    return draft("tool_completed", namespace, tool_call_id=call, outcome=outcome, **more)


def arguments(fragment, call="c1", namespace=()):
    return draft("tool_arguments_delta", namespace, tool_call_id=call, delta=fragment)


def opened(agent="a1", namespace=(), call="c1"):
    return draft("subagent_started", namespace, agent_id=agent, parent_tool_call_id=call)


def closed(agent="a1", namespace=(), call="c1"):
    return draft("subagent_completed", namespace, agent_id=agent, parent_tool_call_id=call, outcome=1)


def form(interrupt_id="i1"):
    field = {"name": "age", "type": 2}
    return draft("interrupt_requested", interrupt_id=interrupt_id, revision=1, interrupt_type=1, fields=[field])


def interrupted(interrupt_id="i1"):
    return draft("run_interrupted", interrupt_id=interrupt_id, reason="waits")


DONE = draft("run_completed", stop_reason="end_turn")
CANCELLED = draft("run_cancelled", reason=1, side_effect_status=2)


def feed(machine, *drafts):
    return [entry for one in drafts for entry in machine.accept(one)]


def kinds(drafts) -> list[str]:
    return [one.payload.WhichOneof("kind") or "" for one in drafts]


def refused(rule, code, *drafts, machine=None):
    machine = machine or RunLifecycle(SMALL)
    feed(machine, *drafts[:-1])
    before = machine.open_state()
    with pytest.raises(ProtocolViolation) as caught:
        machine.accept(drafts[-1])
    assert (caught.value.rule, caught.value.code) == (rule, code)
    assert machine.open_state() == before
    return caught.value


def test_a_whole_run_is_accepted_as_it_is():
    drafts = [
        text("hello"),
        text(" there"),
        started(),
        arguments('{"a": '),
        arguments("1}"),
        opened(),
        text("inner", "m2", ("a1",)),
        started("c2", ("a1",), arguments={"x": [1, {"y": None}]}),
        completed("c2", ("a1",), result={"ok": True}),
        closed(),
        completed(),
        draft("usage_updated", input_tokens=3, cost=0.5, currency="EUR"),
        draft("warning", code="slow", message="took long", details={"s": 3}),
        draft("session_updated", native_session_id="n-1"),
        DONE,
    ]
    assert feed(RunLifecycle(), *drafts) == drafts


# --- rule 1 ---


def test_rule_1_nothing_after_a_terminal():
    refused(1, "after_terminal", DONE, text("late"))
    refused(1, "after_terminal", text("x"), DONE, text("late"))
    refused(1, "after_terminal", CANCELLED, DONE)
    refused(1, "after_terminal", failed_draft(ProtocolViolation(7, "x", "y")), CANCELLED)


def test_rule_1_run_started_is_never_the_runtimes():
    refused(1, "run_started", draft("run_started", harness_id="reference", agent_version=1, binding_id="b"))


# --- rule 2 ---


def test_rule_2_calls_start_before_they_go_on_and_end_once():
    refused(2, "call_not_open", arguments("{}"))
    refused(2, "call_not_open", completed())
    refused(2, "call_not_open", started(), completed(), completed())
    refused(2, "call_not_open", started(), completed(), arguments("{}"))
    refused(2, "call_started_twice", started(), started())
    refused(2, "call_started_twice", started(), completed(), started())
    refused(2, "arguments_given", started(arguments={}), arguments("{}"))


def test_rule_2_joined_arguments_are_a_json_object_before_success():
    refused(2, "arguments_not_json", started(), arguments('{"a"'), completed())
    refused(2, "arguments_not_json", started(), arguments('{"a": NaN}'), completed())
    refused(2, "arguments_not_object", started(), arguments("[1]"), completed())
    error = {"code": "bad_arguments", "message": "not JSON"}
    assert len(feed(RunLifecycle(), started(), arguments('{"a"'), completed(outcome=2, error=error))) == 3


@pytest.mark.parametrize(
    ("terminal", "outcome"),
    [
        (DONE, payload_pb2.TOOL_OUTCOME_CANCELLED),
        (CANCELLED, payload_pb2.TOOL_OUTCOME_CANCELLED),
        (failed_draft(ProtocolViolation(7, "x", "y")), payload_pb2.TOOL_OUTCOME_ERROR),
    ],
)
def test_rule_2_and_3_what_is_open_at_a_terminal_is_closed_before_it_and_never_as_success(terminal, outcome):
    machine = RunLifecycle()
    log = feed(machine, started(), opened(), started("c2", ("a1",)), opened("a2", ("a1",), "c2"), started("c3"))
    end = machine.accept(terminal)
    assert kinds(end) == [
        "subagent_completed",
        "tool_completed",
        "subagent_completed",
        *["tool_completed"] * 2,
        kinds([terminal])[0],
    ]
    assert [one.payload.tool_completed.tool_call_id for one in end if kinds([one]) == ["tool_completed"]] == [
        "c2",
        "c3",
        "c1",
    ]
    for one in end[:-1]:
        kind = kinds([one])[0]
        assert getattr(one.payload, kind).outcome == outcome
    # The whole is itself a legal sequence that needs no more closing.
    assert feed(RunLifecycle(), *log, *end) == [*log, *end]


# --- rule 3 ---


def test_rule_3_namespaces_nest_and_balance():
    refused(3, "namespace_not_open", text("x", "m", ("a1",)))
    refused(3, "namespace_not_open", opened(), closed(), text("x", "m", ("a1",)))
    refused(3, "namespace_not_open", closed())
    refused(3, "namespace_open", opened(), opened())
    refused(3, "namespace_open", opened(), opened(namespace=("a1",)))
    refused(3, "not_balanced", opened(), opened("a2", ("a1",)), closed())
    refused(3, "not_balanced", opened(), started("c2", ("a1",)), closed())
    refused(3, "other_parent", opened(), closed(call="c9"))
    refused(3, "other_namespace", opened(), started("c2", ("a1",)), completed("c2"))
    refused(3, "not_at_root", opened(), draft("run_completed", ("a1",)))
    refused(7, "too_many_namespaces", opened(), opened("a2"), opened("a3"), opened("a4"))


# --- rule 4 ---


def test_rule_4_interrupts():
    machine = RunLifecycle()
    log = feed(machine, started(), form(), completed(), interrupted())
    assert kinds(log) == ["tool_started", "interrupt_requested", "tool_completed", "run_interrupted"]
    assert kinds(feed(RunLifecycle(), started(), form(), interrupted()))[2:] == ["tool_completed", "run_interrupted"]
    assert kinds(feed(RunLifecycle(), form(), CANCELLED)) == ["interrupt_requested", "run_cancelled"]
    refused(4, "interrupt_not_requested", interrupted())
    refused(4, "second_interrupt", form(), form("i2"))
    refused(4, "other_interrupt", form(), interrupted("i2"))
    refused(4, "after_interrupt", form(), DONE)
    refused(4, "after_interrupt", text("x"), form(), text("x"))
    refused(4, "after_interrupt", form(), started())


def test_i25_a_call_that_waits_for_approval_has_not_started():
    approval = {"tool_call_id": "c1", "tool_name": "t", "arguments": {}, "allowed": [1]}
    asked = draft("interrupt_requested", interrupt_id="i", revision=1, interrupt_type=2, tool_approvals=[approval])
    refused(4, "approval_started", started(), asked)
    refused(4, "approval_started", started(), completed(), asked)
    assert len(feed(RunLifecycle(), asked)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"interrupt_type": 1},
        {"interrupt_type": 2, "fields": [{"name": "a", "type": 1}]},
        {"interrupt_type": 1, "fields": [{"name": "a", "type": 4}]},
        {"interrupt_type": 1, "fields": [{"name": "a", "type": 1}] * 2},
        {"interrupt_type": 2, "tool_approvals": [{"tool_call_id": "c", "tool_name": "t"}]},
    ],
)
def test_an_interrupt_asks_for_exactly_one_thing(fields):
    refused(7, "malformed", draft("interrupt_requested", interrupt_id="i", revision=1, **fields))


# --- rule 7 and bounds ---


def test_rule_7_malformed_events_are_refused_by_a_summary_without_their_content():
    canary = "canary value!"
    for bad in [
        text("x", canary),
        started(canary),
        started(parent_message_id=canary),
        completed(result_ref=canary),
        draft("usage_updated", currency=canary),
        draft("run_failed", code=canary, category=1, message="m", side_effect_status=1),
        text("x", "m", (canary,)),
    ]:
        violation = refused(7, "malformed", bad)
        assert canary not in str(violation)
        assert canary not in str(failed_draft(violation))
    refused(7, "malformed", event_pb2.EventDraft())
    refused(7, "malformed", draft("session_updated"))
    refused(7, "malformed", started(), completed(outcome=2))
    refused(7, "malformed", started(), completed(result=1, result_ref="r"))
    refused(7, "private_field", draft("warning", code="c", message="m", native_session_id="n"))
    refused(7, "private_field", draft("warning", code="c", message="m", pending_head=event_pb2.PendingHead()))


def test_rule_7_private_fields_do_not_slip_through_with_text():
    machine = RunLifecycle()
    feed(machine, text("open"))
    extras = (event_pb2.EventDraft(native_session_id="n"), event_pb2.EventDraft(pending_head=event_pb2.PendingHead()))
    for extra in extras:
        one = text("more")
        one.MergeFrom(extra)
        refused(7, "private_field", one, machine=machine)


def test_unknown_fields_are_dropped():
    machine = RunLifecycle()
    feed(machine, text("open"))
    unknown = b"\xa2\x3f\x06canary"
    assert machine.accept(event_pb2.EventDraft.FromString(text("more").SerializeToString() + unknown)) == (
        text("more"),
    )
    warning = draft("warning", code="c", message="m")
    (kept,) = machine.accept(event_pb2.EventDraft.FromString(warning.SerializeToString() + unknown))
    assert b"canary" not in kept.SerializeToString()


def test_bounds_of_structures():
    deep = {}
    for _ in range(8):
        deep = {"k": deep}
    refused(7, "too_deep", started(arguments=deep))
    assert feed(RunLifecycle(), started(arguments=deep["k"]))
    refused(7, "too_many_keys", started(arguments={str(n): n for n in range(257)}))
    refused(7, "too_large", started(arguments={"k": "x" * 65}))
    refused(7, "too_large", started(), arguments("x" * 65))
    refused(7, "too_large", started(), arguments("x" * 40), arguments("x" * 40))
    refused(7, "too_large", started(), started("c2"), arguments("x" * 60), arguments("é" * 21, "c2"))
    refused(7, "too_large", started(), completed(result="x" * 256 * 1024), machine=RunLifecycle())
    refused(7, "too_many_calls", started("c1"), started("c2"), started("c3"), started("c4"))
    for number in (math.nan, math.inf, -math.inf):
        bad = started()
        bad.payload.tool_started.arguments.fields["n"].number_value = number
        refused(7, "not_finite", bad)
    cost = draft("usage_updated")
    cost.payload.usage_updated.cost = math.nan
    refused(7, "not_finite", cost)
    hollow = started()
    hollow.payload.tool_started.arguments.fields["n"].CopyFrom(struct_pb2.Value())
    refused(7, "malformed", hollow)
    large = draft("provider_metadata", provider="p", metadata={"k": "x" * 262_144})
    refused(7, "too_large", large)
    calls = [
        {"tool_call_id": f"c{n}", "tool_name": "t", "arguments": {"k": "x" * 100_000}, "allowed": [1]} for n in range(3)
    ]
    several = draft("interrupt_requested", interrupt_id="i", revision=1, interrupt_type=2, tool_approvals=calls)
    refused(7, "too_large", several, machine=RunLifecycle())


def test_rule_8_empty_deltas_are_dropped_and_long_ones_split_between_characters():
    machine = RunLifecycle(SMALL)
    assert machine.accept(text("")) == ()
    body = "añ€😀" * 9
    pieces = [one.payload.content_delta.text for one in feed(machine, text("go"), text(body))][1:]
    assert "".join(pieces) == body
    assert len(pieces) > 1
    assert all(0 < len(piece.encode()) <= 16 for piece in pieces)
    assert machine.accept(text("")) == ()
    feed(machine, started())
    assert machine.accept(arguments("")) == ()
    refused(2, "call_not_open", arguments("", "c9"), machine=machine)


def test_control_characters_are_replaced_never_refused():
    machine = RunLifecycle()
    dirty = "a\x00b\x1b\r\x7f\x85\t\n"
    clean = "a�b����\t\n"
    for one in feed(machine, text(dirty), text(dirty), draft("reasoning_delta", message_id="r", text=dirty)):
        kind = kinds([one])[0]
        assert getattr(one.payload, kind).text == clean
    (warned,) = machine.accept(draft("warning", code="c", message=dirty, details={dirty: [dirty, {"k": dirty}]}))
    assert warned == draft("warning", code="c", message=clean, details={clean: [clean, {"k": clean}]})


def test_provider_metadata_passes_the_edge_and_not_the_log():
    metadata = draft("provider_metadata", provider="p")
    assert RunLifecycle().accept(metadata) == (metadata,)
    assert RunLifecycle(at_log=True).accept(metadata) == ()


def test_i22_operator_fields_are_stripped_from_what_clients_see():
    failed = draft(
        "run_failed",
        code="c",
        category=1,
        message="m",
        side_effect_status=1,
        provider_code="secret-1",
        diagnostic="secret-2",
    )
    assert b"secret" not in public_payload(failed).SerializeToString()
    assert failed.payload.run_failed.diagnostic == "secret-2"
    assert public_payload(text("x")) == text("x").payload


# --- over random sequences ---

PATHS = ((), ("a1",), ("a1", "a2"), ("a2",), ("bad id",))
TEXTS = ("", "x", "{}", '{"a":', "1}", "\x00", "añ€😀" * 9, "line\n", "x" * 70)


def every_kind_of_draft():
    """Drafts of every kind, legal and not, around few ids and namespaces, so that they meet."""
    pool = [event_pb2.EventDraft(), form(), form("i2"), interrupted(), DONE, CANCELLED]
    pool.append(draft("run_started", harness_id="reference", agent_version=1, binding_id="b"))
    for path in PATHS:
        pool += [draft("usage_updated", path), draft("provider_metadata", path), draft("run_completed", path)]
        pool += [draft("warning", path, code=code, message="m\x01") for code in ("c", "")]
        for body in TEXTS:
            pool += [text(body, message_id, path) for message_id in ("m1", "m2", "bad id")]
            pool.append(draft("reasoning_delta", path, message_id="m1", text=body))
            pool += [arguments(body, call, path) for call in ("c1", "c2")]
        for call in ("c1", "c2", "bad id"):
            pool += [started(call, path), started(call, path, arguments={"k": 1})]
            pool += [completed(call, path, outcome=outcome) for outcome in range(5)]
        for agent in ("a1", "a2", ""):
            pool += [opened(agent, path), closed(agent, path), closed(agent, path, "c9")]
    # What opens and closes things weighs as much as the many texts do.
    return pool + 8 * [one for one in pool if kinds([one])[0] in ("tool_started", "tool_completed", "subagent_started")]


SEQUENCES = st.lists(st.sampled_from(every_kind_of_draft()), max_size=40)


def try_all(machine, sequence):
    outcome = []
    for one in sequence:
        try:
            outcome.append(machine.accept(one))
        except ProtocolViolation as violation:
            outcome.append((violation.rule, violation.code))
    return outcome


def accepted(outcome):
    return [one for entry in outcome for one in entry if isinstance(one, event_pb2.EventDraft)]


def assert_valid_log(log):
    """The rules again, in their plainest form and independent of the machine."""
    calls, ended_calls, paths, ended, interrupt = {}, set(), set(), False, ""
    for one in log:
        kind, path = one.payload.WhichOneof("kind") or "", tuple(one.namespace)
        body = getattr(one.payload, kind)
        assert not ended
        assert kind != "run_started"
        assert not path or path in paths
        assert one.ByteSize() <= 256 * 1024
        assert not interrupt or kind in TERMINAL_KINDS | {"tool_completed", "subagent_completed", "provider_metadata"}
        if kind in ("content_delta", "reasoning_delta"):
            assert 0 < len(body.text.encode()) <= 16
            assert not any(ord(c) < 32 and c not in "\t\n" for c in body.text)
        elif kind == "tool_started":
            assert body.tool_call_id not in calls.keys() | ended_calls
            calls[body.tool_call_id] = path
        elif kind == "tool_arguments_delta":
            assert body.delta
            assert calls[body.tool_call_id] == path
        elif kind == "tool_completed":
            assert calls.pop(body.tool_call_id) == path
            ended_calls.add(body.tool_call_id)
        elif kind == "subagent_started":
            assert (*path, body.agent_id) not in paths
            paths.add((*path, body.agent_id))
        elif kind == "subagent_completed":
            mine = (*path, body.agent_id)
            assert not any(other[: len(mine)] == mine and other != mine for other in paths)
            assert mine not in calls.values()
            paths.remove(mine)
        elif kind == "interrupt_requested":
            interrupt = body.interrupt_id
        elif kind in TERMINAL_KINDS:
            assert not calls
            assert not paths
            assert kind != "run_interrupted" or body.interrupt_id == interrupt
            ended = True


@given(SEQUENCES)
@settings(max_examples=200)
def test_i19_random_sequences_never_make_an_invalid_log(sequence):
    log = accepted(try_all(RunLifecycle(SMALL), sequence))
    assert_valid_log(log)
    # What was accepted once is accepted again, unchanged: the log's check agrees with the edge's.
    assert feed(RunLifecycle(SMALL), *log) == log
    assert try_all(RunLifecycle(SMALL), sequence) == try_all(RunLifecycle(SMALL), sequence)


@given(SEQUENCES, st.data())
@settings(max_examples=200)
def test_a_restored_machine_goes_on_as_the_original(sequence, data):
    at = data.draw(st.integers(0, len(sequence)))
    original = RunLifecycle(SMALL)
    try_all(original, sequence[:at])
    restored = RunLifecycle.restore(OpenState.from_dict(original.open_state().to_dict()), SMALL)
    assert restored.open_state() == original.open_state()
    assert try_all(restored, sequence[at:]) == try_all(original, sequence[at:])
    assert restored.open_state() == original.open_state()


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_never_make_an_invalid_log(data):
    machine = RunLifecycle(SMALL)
    log = feed(machine, text("open"))
    try:
        garbage = event_pb2.EventDraft.FromString(data)
    except Exception:  # noqa: BLE001 -- what does not parse never becomes a draft
        return
    assert_valid_log([*log, *accepted(try_all(machine, [garbage]))])
