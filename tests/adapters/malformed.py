"""Requests that break one constraint of the contracts each, made from valid ones; an adapter must refuse every one of them, whatever its language."""

from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import protovalidate
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from adapters.sdk.testing import AdapterClient
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.status import drained

_WORDS = ("", "a b\n", "x" * 129, "x" * 5_000, "\u00e9" * 600)
_VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: _WORDS,
    FieldDescriptor.TYPE_ENUM: (0, 99),
    FieldDescriptor.TYPE_BOOL: (False,),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
}
# Far more than any list of the contracts may have.
_MANY = 300
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


async def taken(client: AdapterClient) -> tuple[list[str], int]:
    """What was not refused with INVALID_ARGUMENT, each with how it was answered, of how many. The runtime of the client must have been created."""
    found: list[str] = []
    count = 0
    for call, valid in _requests(client):
        assert not protovalidate.collect_violations(valid), valid.DESCRIPTOR.name
        for rule, request in broken(valid):
            count += 1
            answered = await _answer(call, request)
            if answered != "INVALID_ARGUMENT":
                found.append(f"{valid.DESCRIPTOR.name}.{rule}: {answered}")
    return found, count


async def _answer(call: Any, request: Message) -> str:
    answering = call(request, timeout=60)
    try:
        await (drained(answering) if hasattr(answering, "read") else answering)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def broken(valid: Message) -> Iterator[tuple[str, Message]]:
    """Each constraint of each field, here and further inside, broken once: its place and rule, and the request."""
    seen: set[str] = set()
    for path in list(_paths(valid, ())):
        for field in _at(valid, path).DESCRIPTOR.fields:
            for change in _changes(field):
                request = type(valid)()
                request.CopyFrom(valid)
                change(_at(request, path))
                violations = protovalidate.collect_violations(request)
                place = ".".join((*map(str, path), field.name))
                rule = f"{place} {violations[0].proto.rule_id}" if violations else ""
                if rule and rule not in seen:
                    seen.add(rule)
                    yield rule, request


def _ours(field: Any) -> bool:
    message: Any = field.message_type
    return message is not None and message.full_name.startswith("harness.") and not message.GetOptions().map_entry


def _paths(message: Message, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield path
    for field in message.DESCRIPTOR.fields:
        if _ours(field):
            value: Any = getattr(message, field.name)
            if not field.is_repeated:
                yield from _paths(value, (*path, field.name))
            elif value:
                yield from _paths(value[0], (*path, field.name, 0))


def _at(message: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        message = message[step] if isinstance(step, int) else getattr(message, step)
    return message


def _changes(field: Any) -> Iterator[Any]:
    name = field.name
    if field.is_repeated and _ours(field):
        yield lambda message: getattr(message, name).add()
        yield lambda message: [getattr(message, name).add() for _ in range(_MANY)]
    elif field.is_repeated and field.type in _VALUES:
        text = field.type == FieldDescriptor.TYPE_STRING
        yield lambda message: getattr(message, name).append("bad one\n" if text else 99)
        yield lambda message: getattr(message, name).extend([f"x{number}" if text else 1 for number in range(_MANY)])
    elif field.message_type is not None and not field.is_repeated:
        yield lambda message: message.ClearField(name)
    else:
        for value in _VALUES.get(field.type, ()):
            yield lambda message, value=value: setattr(message, name, value)


def _requests(client: AdapterClient) -> Iterator[tuple[Any, Message]]:
    def run(turn: int) -> Any:
        marks: dict[str, Any] = {"request_id": "q", "idempotency_key": "k", "traceparent": TRACEPARENT}
        return client.fence(turn, f"malformed-{turn}", **marks)

    context = client.context()
    context.tools.add(tool_id="t", provider_name="t")
    context.skills.add(skill_id="s")
    context.facades.add(audience="state", address="unix:/x")
    context.blueprint.tools.bindings.add(tool_id="t", approval_policy=2)
    turn = client.input("x")
    turn.tokens.add(audience="state", value="v", expires_at=turn.deadline)
    turn.files.add(file_id="f")
    decision = runtime_pb2.ResumeDecision(interrupt_id="i", revision=1, interrupted_run_id="r")
    decision.tool_decisions.decisions.add(tool_call_id="c", approve=True)
    adapter, runtime, fence, place = client.adapter, client.runtime, client.fence(), client.incarnation
    yield adapter.CreateRuntime, adapter_pb2.CreateRuntimeRequest(fence=fence, context=context)
    evaluated = adapter_pb2.EvaluateRequest(blueprint=context.blueprint, placement=context.placement)
    yield adapter.Evaluate, evaluated
    yield adapter.OpenSession, adapter_pb2.OpenSessionRequest(fence=fence, context=context)
    yield adapter.CloseSession, adapter_pb2.CloseSessionRequest(fence=fence, native_session_id="n")
    yield runtime.Initialize, pb2.InitializeRequest(fence=fence)
    yield runtime.StartRun, pb2.StartRunRequest(fence=run(50), incarnation=place, turn=turn)
    yield runtime.ResumeRun, pb2.ResumeRunRequest(fence=run(60), incarnation=place, turn=turn, decision=decision)
    yield runtime.AttachRun, pb2.AttachRunRequest(fence=run(70), incarnation=place)
    yield runtime.AckRun, pb2.AckRunRequest(fence=run(70), through_offset=1)
    yield runtime.CancelRun, pb2.CancelRunRequest(fence=run(70), reason=payload_pb2.CANCEL_REASON_CLIENT_REQUEST)
    yield runtime.GetPendingInterrupt, pb2.GetPendingInterruptRequest(fence=fence)
    yield runtime.Restart, pb2.RestartRequest(fence=fence)
    yield runtime.Cleanup, pb2.CleanupRequest(fence=fence)
