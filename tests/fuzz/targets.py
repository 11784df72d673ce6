"""What is fuzzed. A target takes a source of chance, hands something in, and says what became of it; whatever else happens is a finding."""

# pyright: standard
# Messages are known by their descriptors only, so their fields are untyped here.

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
import protovalidate
from google.protobuf import json_format, struct_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from adapters.sdk import errors, events
from adapters.sdk.lifecycle import ProtocolViolation, RunLifecycle
from harness.adapter.v1.adapter_service_pb2 import EvaluateResponse
from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.catalog.v1.harness_pb2 import CERTIFICATION_EXPERIMENTAL
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_pb2
from services.catalog.certification import Standing
from services.catalog.descriptor_policy import DescriptorRefused, KnownDescriptor, admit
from services.catalog.evidence import EvidenceRefused, read_evidence
from services.catalog.options_schema import OptionsSchema, SchemaRefused
from services.catalog.published import public_harness
from services.catalog.snapshot import HarnessState
from services.catalog.validation import MAX_ISSUES, evaluated, judge
from services.common.capabilities import file_needs, unmet
from services.common.errors import HarnessError
from services.common.status import from_status, to_status
from services.gateway.encodings.encoding import Encoding
from services.gateway.envelope import failure
from services.gateway.event_view import event_json
from services.runs import resume
from services.runs.answer import Answer
from services.runs.decision import issues_of
from services.runs.log.port import SegmentHeader
from services.runs.run import tombstone
from services.runs.segmenting import Packer, Stop, Tail
from tests.catalog.processes import blueprint, message
from tests.catalog.test_evidence import report
from tests.catalog.test_validation import ABLE, CATALOG, OPEN, TOOLS
from tests.catalog.toy_adapter import descriptor
from tests.fuzz.messages import CANARIES, Maker, mutated, parsed

Target = Callable[[random.Random], str]
REFUSED: Final = "refused"
TAKEN: Final = "taken"
TIME = Timestamp(seconds=1)
ENCODINGS = (
    Encoding(blueprint_pb2.STREAM_PROTOCOL_CANONICAL),
    Encoding(blueprint_pb2.STREAM_PROTOCOL_AGUI, "c"),
    Encoding(blueprint_pb2.STREAM_PROTOCOL_CUSTOM),
)


def no_canary(*shown: bytes | str) -> None:
    """Nothing that must not be shown stands in what is shown (I18, I22)."""
    for text in shown:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        assert not any(canary.encode() in data for canary in CANARIES), "something that must not be shown is shown"


# --- what adapters say of themselves ---

_GOOD: Final = json_format.ParseDict(descriptor(), Descriptor()).SerializeToString()


def fuzz_descriptor(source: random.Random) -> str:
    """A descriptor is admitted or refused with a reason; nothing that must not be shown gets through (I18)."""
    said = _descriptor(source)
    if said is None or protovalidate.collect_violations(said):
        return REFUSED
    try:
        known = admit("toy", said)
    except DescriptorRefused as refusal:
        no_canary(str(refusal))
        return REFUSED if len(str(refusal)) <= 1_000 else "a reason without a bound"
    _check_known(known, source)
    return TAKEN


def _descriptor(source: random.Random) -> Descriptor | None:
    maker = Maker(source)
    if source.random() < 0.25:
        return parsed(Descriptor, mutated(source, _GOOD))
    said = Descriptor.FromString(_GOOD) if source.random() < 0.85 else maker.message(Descriptor)
    for _ in range(source.choice((1, 1, 2, 4))):
        maker.set_field(said, source.choice(Descriptor.DESCRIPTOR.fields), 4, 0.5)
    if source.random() < 0.5:
        said.harness_id, said.adapter_version, said.display_name = "toy", "1.2.3", "Toy"
        if source.random() < 0.5:
            json_format.ParseDict(_root(maker, 3), said.options_schema)
    return said


def _check_known(known: KnownDescriptor, source: random.Random) -> None:
    state = HarnessState(CATALOG.harnesses["toy"].adapter, known)
    shown = public_harness(state, Standing(CERTIFICATION_EXPERIMENTAL))
    no_canary(shown.SerializeToString(), orjson.dumps(known.document))
    _check_options(known.options, source)


def fuzz_schema(source: random.Random) -> str:
    """An options schema is admitted or refused; an admitted one judges any options, and its defaults are written once (I17, I35)."""
    try:
        schema = OptionsSchema(_root(Maker(source), 4))
    except SchemaRefused as refusal:
        no_canary(str(refusal))
        return REFUSED
    _check_options(schema, source)
    return TAKEN


def _check_options(schema: OptionsSchema, source: random.Random) -> None:
    options = _finite({Maker(source).word(): Maker(source).json(3) for _ in range(3)})
    issues = schema.issues(options, "o")
    assert len(issues) <= 100
    filled = schema.with_defaults(options)
    assert schema.with_defaults(filled) == filled


def _root(maker: Maker, depth: int) -> dict[str, Any]:
    schema = _finite(_schema(maker, depth))
    return schema if isinstance(schema, dict) else {"type": "object"}


def _schema(maker: Maker, depth: int) -> Any:
    """Something like a JSON Schema."""
    source = maker.source
    if depth <= 0 or source.random() < 0.1:
        return source.choice((True, False, {}, {"type": "string"}, {"$ref": "#/$defs/a"}, maker.json(1)))
    schema: dict[str, Any] = {
        "type": source.choice(("object", "object", "string", "array", "integer", ["null", "string"], "odd"))
    }
    for keyword in source.sample(_KEYWORDS, source.choice((0, 1, 2, 3))):
        schema[keyword] = _keyword(keyword, maker, depth)
    return schema


_KEYWORDS: Final = (
    "properties", "$defs", "items", "anyOf", "allOf", "oneOf", "not", "if", "then", "enum", "const", "default", "pattern", "required", "minimum",
    "maxLength", "additionalProperties", "title", "$ref", "$schema", "$id", "dependentRequired", "propertyNames", "format",
)  # fmt: skip


def _keyword(keyword: str, maker: Maker, depth: int) -> Any:
    source = maker.source
    if source.random() < 0.05:
        return maker.json(2)
    if keyword in ("properties", "$defs"):
        names = ("a", "b", "max_turns", "api_key", "x" * 65, maker.word())
        return {source.choice(names): _schema(maker, depth - 1) for _ in range(source.choice((1, 2)))}
    if keyword in ("items", "not", "if", "then", "additionalProperties", "propertyNames"):
        return _schema(maker, depth - 1)
    if keyword in ("anyOf", "allOf", "oneOf"):
        return [_schema(maker, depth - 1) for _ in range(source.choice((0, 1, 2)))]
    if keyword == "pattern":
        return source.choice(
            ("^[a-z]+$", "(a+)+$", "a*b*c*", "[", "(?=x)", "\\1", "x{2,}", "^a?b?c?d?e?$", maker.word())
        )
    if keyword == "$ref":
        return source.choice(("#/$defs/a", "#/$defs/b", "#", "https://x.test/s", maker.word()))
    return maker.json(2) if keyword in ("enum", "const", "default", "required", "dependentRequired") else maker.word()


def _finite(value: Any) -> Any:
    """The value as JSON carries it."""
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_finite(child) for child in value]
    return 0 if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def fuzz_draft(source: random.Random) -> str:
    """A draft gets its verdict, and the adapter's own verdict on top, within bounds and without what the adapter may not show (I16, I22)."""
    maker = Maker(source)
    draft = message(blueprint())
    if source.random() < 0.3:
        draft = maker.message(blueprint_pb2.AgentBlueprint)
    for _ in range(source.choice((0, 1, 2, 3))):
        maker.set_field(draft, source.choice(draft.DESCRIPTOR.fields), 4, 0.5)
    if source.random() < 0.6:
        draft.harness.id = "toy"
    verdict = judge(draft, source.choice((CATALOG, ABLE, OPEN)))
    answer = maker.message(EvaluateResponse)
    if not protovalidate.collect_violations(answer):
        verdict = evaluated(verdict, answer, TOOLS)
        if answer.issues and verdict.normalized is not None:
            no_canary(*(part for issue in verdict.issues[-len(answer.issues) :] for part in (issue.code,)))
    assert len(verdict.issues) <= MAX_ISSUES
    assert all(issue.message for issue in verdict.issues)
    return TAKEN if verdict.valid else REFUSED


def fuzz_evidence(source: random.Random) -> str:
    """A file is evidence or refused; what was changed after it was made is refused (I21)."""
    good = json.dumps(report()).encode()
    if source.random() < 0.4:
        data = mutated(source, good)
    else:
        document = report()
        at: Any = document
        for _ in range(source.randint(1, 3)):
            key = source.choice(list(at)) if isinstance(at, dict) and at else None
            if key is None:
                break
            if source.random() < 0.5 or not isinstance(at[key], dict):
                at[key] = Maker(source).json(3)
                break
            at = at[key]
        data = json.dumps(document).encode()
    try:
        evidence = read_evidence(data)
    except EvidenceRefused as refusal:
        no_canary(str(refusal))
        return REFUSED
    original = read_evidence(good)
    assert evidence == original, "a changed report is believed"
    return TAKEN


# --- what clients decide ---


def fuzz_decision(source: random.Random) -> str:
    """A decision fits what was asked or is refused field by field; what fits never widens what was allowed (I24, I25)."""
    asked = _asked(source)
    if asked is None:
        return "not askable"
    decided = _decision(source, asked)
    if protovalidate.collect_violations(decided):
        return REFUSED
    issues = issues_of(asked, decided)
    interrupted = tombstone("run-1", "b", 1, 0, 0)
    request = resume.request_of(interrupted, None, decided)
    assert request.digest == resume.request_of(interrupted, None, _reordered(decided, source)).digest  # I24
    if issues:
        assert all(issue.path and issue.code and issue.message for issue in issues)
        return REFUSED
    _check_fits(asked, decided)
    return TAKEN


_FIELD_TYPES: Final = (
    payload_pb2.FORM_FIELD_TYPE_STRING,
    payload_pb2.FORM_FIELD_TYPE_NUMBER,
    payload_pb2.FORM_FIELD_TYPE_BOOLEAN,
    payload_pb2.FORM_FIELD_TYPE_CHOICE,
)
_NUMBERS: Final = {
    "approve": payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
    "reject": payload_pb2.APPROVAL_DECISION_KIND_REJECT,
    "edit": payload_pb2.APPROVAL_DECISION_KIND_EDIT,
}


def _asked(source: random.Random) -> payload_pb2.InterruptRequested | None:
    """An interrupt as it gets through the lifecycle, None if what was made does not."""
    maker = Maker(source, ("c1", "c2", "a", "b", "tool", "", "x" * 200))
    draft = event_pb2.EventDraft()
    requested = draft.payload.interrupt_requested
    maker.fill(requested, 3, 0.7)
    requested.interrupt_id, requested.revision = "i1", 1
    if source.random() < 0.8:
        form = source.random() < 0.5
        requested.interrupt_type = (
            payload_pb2.INTERRUPT_TYPE_FORM_INPUT if form else payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL
        )
        requested.ClearField("tool_approvals" if form else "fields")
        for number, field in enumerate(requested.fields):
            field.name, field.type = f"f{number}", source.choice(_FIELD_TYPES)
            field.ClearField("options")
            field.options.extend(["a", "b"] if field.type == payload_pb2.FORM_FIELD_TYPE_CHOICE else [])
        for number, approval in enumerate(requested.tool_approvals):
            approval.tool_call_id, approval.tool_name = f"c{number}", "tool"
            approval.ClearField("allowed")
            approval.allowed.extend(source.sample(list(_NUMBERS.values()), source.randint(1, 3)))
    try:
        (accepted,) = RunLifecycle().accept(draft)
    except ProtocolViolation:
        return None
    return accepted.payload.interrupt_requested


def _decision(source: random.Random, asked: payload_pb2.InterruptRequested) -> run_service_pb2.ResumeRunRequest:
    maker = Maker(source, ("a", "b", "f0", "c0", "", "x" * 70_000, "\u202e"))
    decided = run_service_pb2.ResumeRunRequest(run_id="run-1", interrupt_id="i1", revision=1)
    kind = source.choice(("form", "form", "calls", "calls", "dismiss", "random"))
    if kind == "form":
        decided.form_values.SetInParent()
        for field in asked.fields:
            if source.random() < 0.9:
                maker.fill(decided.form_values.fields[field.name], 1, 1.0)
                if source.random() < 0.7:
                    _fit(decided.form_values.fields[field.name], field)
    elif kind == "calls":
        decided.tool_decisions.SetInParent()
        for approval in asked.tool_approvals:
            if source.random() < 0.9:
                decision = decided.tool_decisions.decisions.add()
                maker.fill(decision, 3, 0.9)
                decision.tool_call_id = approval.tool_call_id
    elif kind == "dismiss":
        decided.dismiss = True
    else:
        maker.fill(decided, 4, 0.8)
        decided.run_id, decided.interrupt_id, decided.revision = "run-1", "i1", 1
    return decided


def _fit(value: struct_pb2.Value, field: payload_pb2.FormField) -> None:
    if field.type == payload_pb2.FORM_FIELD_TYPE_NUMBER:
        value.number_value = 3.5
    elif field.type == payload_pb2.FORM_FIELD_TYPE_BOOLEAN:
        value.bool_value = True
    else:
        value.string_value = "a"


def _reordered(decided: run_service_pb2.ResumeRunRequest, source: random.Random) -> run_service_pb2.ResumeRunRequest:
    other = copy.deepcopy(decided)
    if decided.HasField("tool_decisions"):
        ids = [each.tool_call_id for each in decided.tool_decisions.decisions]
        if len(set(ids)) == len(ids):  # what is decided twice is refused anyway
            decisions = list(decided.tool_decisions.decisions)
            source.shuffle(decisions)
            del other.tool_decisions.decisions[:]
            other.tool_decisions.decisions.extend(decisions)
    return other


def _check_fits(asked: payload_pb2.InterruptRequested, decided: run_service_pb2.ResumeRunRequest) -> None:
    """The rules of a decision once more, in their plainest form."""
    answer = decided.WhichOneof("answer")
    if answer == "form_values":
        fields = {field.name: field for field in asked.fields}
        assert asked.interrupt_type == payload_pb2.INTERRUPT_TYPE_FORM_INPUT
        assert set(decided.form_values.fields) <= set(fields)
        for name, field in fields.items():
            assert name in decided.form_values.fields or not field.required
            if field.type == payload_pb2.FORM_FIELD_TYPE_CHOICE and name in decided.form_values.fields:
                assert decided.form_values.fields[name].string_value in field.options
    elif answer == "tool_decisions":
        assert asked.interrupt_type == payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL
        allowed = {each.tool_call_id: set(each.allowed) for each in asked.tool_approvals}
        decisions = decided.tool_decisions.decisions
        assert sorted(each.tool_call_id for each in decisions) == sorted(allowed)
        assert all(_NUMBERS[each.WhichOneof("decision") or ""] in allowed[each.tool_call_id] for each in decisions)
    else:
        assert answer == "dismiss"


# --- what runtimes send ---


def fuzz_events(source: random.Random) -> str:
    """A stream is taken whole or fails by a rule at the edge; what is taken is taken at the log, dense, in every encoding, without private fields (I7, I19)."""
    odd = [each for _ in range(source.randint(1, 14)) if (each := _draft(source)) is not None]
    drafts = odd if source.random() < 0.4 else _sane(source)
    edge = RunLifecycle()
    sent: list[event_pb2.EventDraft] = []
    broke = False
    for draft in drafts:
        try:
            sent += edge.accept(draft)
        except ProtocolViolation as violation:
            no_canary(violation.summary, violation.code, str(violation.rule))
            broke = True
            break
    if broke and source.random() < 0.5:
        sent = drafts  # a host that checks nothing: the log checks again
    segments, ended = _at_the_log(sent, source)
    _check_segments(segments)
    return REFUSED if broke or not ended else TAKEN


def _sane(source: random.Random) -> list[event_pb2.EventDraft]:
    """A stream as an adapter sends it, now and then with one thing that does not belong."""
    drafts = [_step(source) for _ in range(source.randint(0, 8))]
    drafts = [each for step in drafts for each in step]
    odd = _draft(source) if source.random() < 0.3 else None
    if odd is not None:
        drafts.insert(source.randint(0, len(drafts)), odd)
    failed = errors.failed_draft(errors.ThrottledError("Later.", diagnostic=CANARIES[0]), showed_output=True)
    return [*drafts, source.choice((events.completed(), events.completed("end"), failed))]


def _step(source: random.Random) -> list[event_pb2.EventDraft]:
    call = f"c{source.randrange(1 << 30)}"
    text = source.choice(("x", "😀" * 30_000, "\x00\x07", ""))
    return source.choice(
        (
            [events.text(text)],
            [events.reasoning(text)],
            [events.session_updated("native")],
            [events.usage(input_tokens=1)],
            [events.tool_started(call, "t"), events.tool_arguments(call, "{}"), events.tool_succeeded(call)],
            [events.tool_started(call, "t")],
        )
    )


def _draft(source: random.Random) -> event_pb2.EventDraft | None:
    words = (
        "m1",
        "c1",
        "c2",
        "a1",
        "t",
        "i1",
        "end",
        '{"k":1}',
        "{",
        "",
        "x" * 129,
        "\x00\x07",
        "😀" * 30_000,
        CANARIES[0],
    )
    maker = Maker(source, words)
    if source.random() < 0.15:
        made = maker.message(event_pb2.EventDraft).SerializeToString()
        return parsed(event_pb2.EventDraft, mutated(source, made))
    draft = event_pb2.EventDraft()
    kind = source.choice(payload_pb2.EventPayload.DESCRIPTOR.oneofs_by_name["kind"].fields)
    part = getattr(draft.payload, kind.name)
    known = part.DESCRIPTOR.fields_by_name
    part.SetInParent()
    maker.fill(part, 3, 0.9)
    for name, value in (
        ("message_id", "m1"),
        ("tool_call_id", source.choice(("c1", "c2"))),
        ("text", "hello"),
        ("tool_name", "t"),
    ):
        if name in known and source.random() < 0.85:
            setattr(part, name, value)
    for name in ("outcome", "category", "side_effect_status", "reason"):
        field = known.get(name)
        if field is not None and field.enum_type is not None and source.random() < 0.9:
            setattr(part, name, source.choice((1, 2, 3)))
    if source.random() < 0.1:
        draft.namespace.append(source.choice(("a1", "bad id")))
    if source.random() < 0.1:
        draft.native_session_id = CANARIES[0]
    return draft


def _at_the_log(drafts: list[event_pb2.EventDraft], source: random.Random) -> tuple[list[bytes], bool]:
    """Packs what came, in batches, as an executor would, and carries on at another one half-way."""
    packer = Packer("run-1", Tail())
    packer.start(payload_pb2.RunStarted(harness_id="toy", agent_version=1, binding_id="b"), TIME)
    segments: list[bytes] = []
    offset = 1
    try:
        while drafts:
            size = source.randint(1, len(drafts))
            batch = event_pb2.EventBatch(first_offset=offset, drafts=drafts[:size])
            drafts, offset = drafts[size:], offset + size
            while (stop := packer.pack(batch, TIME)) is not None:
                draft = packer.draft_after_offset(batch)
                if stop is Stop.TERMINAL:
                    packer.check_terminal(draft)
                    packer.end(draft, "failed", TIME)
                    return segments + _taken(packer)[0], True
                packer.session_updated(1, TIME)
            taken, tail = _taken(packer)
            segments += taken
            if tail is not None and packer.asked is None and source.random() < 0.3:
                packer = Packer("run-1", Tail.of(_header(tail)))
    except ProtocolViolation as violation:
        no_canary(violation.summary)
        return segments + _taken(packer)[0], False
    return segments, False


def _taken(packer: Packer) -> tuple[list[bytes], Tail | None]:
    segments: list[bytes] = []
    tail = None
    while (packed := packer.take()) is not None:
        segments.append(packed.packed)
        tail = packed.tail
    return segments, tail


def _header(tail: Tail) -> Any:
    state = orjson.loads(orjson.dumps(tail.state("inc")))
    return SegmentHeader("run-1", tail.index, 1, tail.last_sequence, 1, "n", state)


def _check_segments(segments: list[bytes]) -> None:
    encoders = [encoding.encoder() for encoding in ENCODINGS]
    answer = Answer("run-1")
    sequence = 0
    for segment in segments:
        for event in run_service_pb2.WatchRunResponse.FromString(segment).events:
            sequence += 1
            assert event.sequence == sequence  # I7
            orjson.dumps(event_json(event))
            for encoder in encoders:
                encoder.encode(event)
            failed = event.payload.run_failed
            assert not failed.provider_code  # I22
            assert not failed.diagnostic
            if answer.take([event]):
                try:
                    answer.response()
                except HarnessError as error:
                    failure(from_status(to_status(error)))


# --- what peers answer ---


def fuzz_status(source: random.Random) -> str:
    """Any status of a peer becomes a classified error that REST can show (I22)."""
    maker = Maker(source)
    status = maker.message(status_pb2.Status)
    del status.details[:]
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest):
        if source.random() < 0.7:
            detail = maker.message(kind)
            if kind is error_details_pb2.ErrorInfo and source.random() < 0.7:
                detail.domain = "harness"
                detail.reason = source.choice(("capacity", "STALE_LEASE", "own_code", ""))
                detail.metadata["category"] = source.choice(("throttled", "odd", ""))
            status.details.add().Pack(detail)
            if source.random() < 0.2:
                status.details[-1].value = mutated(source, status.details[-1].value)
    error = from_status(status)
    assert error.category in type(error.category)
    reply = failure(error)
    assert 400 <= reply.status < 600
    json.loads(reply.body)
    again = from_status(to_status(error))
    assert (again.reason, again.category) == (error.reason, error.category)
    return TAKEN


def fuzz_files(source: random.Random) -> str:
    """Files of a turn against any claims."""
    maker = Maker(source, ("", "image/png", "IMAGE/*", "text/plain", "/", "image/", "x" * 200))
    files = [maker.message(runtime_pb2.FileRef) for _ in range(source.randint(0, 5))]
    claims = {key: maker.message(type(Descriptor().capabilities["x"])) for key in ("input.images", "input.documents")}
    issues = list(unmet(file_needs(files), claims, "toy"))
    assert all(issue.path.startswith("files") for issue in issues)
    return REFUSED if issues else TAKEN


TARGETS: Final[Mapping[str, Target]] = {
    name.removeprefix("fuzz_"): target
    for name, target in (
        ("fuzz_descriptor", fuzz_descriptor),
        ("fuzz_schema", fuzz_schema),
        ("fuzz_draft", fuzz_draft),
        ("fuzz_evidence", fuzz_evidence),
        ("fuzz_decision", fuzz_decision),
        ("fuzz_events", fuzz_events),
        ("fuzz_status", fuzz_status),
        ("fuzz_files", fuzz_files),
    )
}
