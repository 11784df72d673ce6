"""Documents as messages of the contracts, and back."""

from __future__ import annotations  # the enums' value types exist for the type checker alone

from base64 import b64decode, b64encode

from google.protobuf.timestamp_pb2 import Timestamp

from harness.common.v1 import fence_pb2, runtime_ref_pb2
from harness.event.v1 import payload_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.sessions import turn
from services.sessions.binding import (
    ACTIVE,
    CLOSING,
    ENQUEUE,
    INTERRUPT,
    REJECT,
    ActiveDocument,
    BindingDocument,
    HeadDocument,
    InterruptDocument,
    PinDocument,
    Policy,
    RuntimeRefDocument,
    Status,
    revision_of,
)
from services.sessions.interrupt import Answer, Asked
from services.sessions.runtime_fence import Fence

_STATUSES: dict[Status, binding_pb2.BindingStatus.ValueType] = {
    ACTIVE: binding_pb2.BINDING_STATUS_ACTIVE,
    CLOSING: binding_pb2.BINDING_STATUS_CLOSING,
}
_POLICIES: dict[Policy, binding_pb2.ConflictPolicy.ValueType] = {
    REJECT: binding_pb2.CONFLICT_POLICY_REJECT,
    ENQUEUE: binding_pb2.CONFLICT_POLICY_ENQUEUE,
    INTERRUPT: binding_pb2.CONFLICT_POLICY_INTERRUPT,
}
_POLICY_OF: dict[binding_pb2.ConflictPolicy.ValueType, Policy] = {
    binding_pb2.CONFLICT_POLICY_UNSPECIFIED: REJECT,
    **{message: policy for policy, message in _POLICIES.items()},
}
_OUTCOMES: dict[turn.Outcome, session_service_pb2.ReserveOutcome.ValueType] = {
    turn.GRANTED: session_service_pb2.RESERVE_OUTCOME_GRANTED,
    turn.WAITING: session_service_pb2.RESERVE_OUTCOME_WAITING,
    turn.EXISTING: session_service_pb2.RESERVE_OUTCOME_EXISTING,
    turn.OCCUPIED: session_service_pb2.RESERVE_OUTCOME_OCCUPIED,
    turn.CLEARING: session_service_pb2.RESERVE_OUTCOME_CLOSING,
    turn.INTERRUPT_PENDING: session_service_pb2.RESERVE_OUTCOME_INTERRUPT_PENDING,
    turn.ANSWERED: session_service_pb2.RESERVE_OUTCOME_ANSWERED,
    turn.ANSWERED_OTHERWISE: session_service_pb2.RESERVE_OUTCOME_ANSWERED_OTHERWISE,
    turn.NOT_PENDING: session_service_pb2.RESERVE_OUTCOME_NOT_PENDING,
    turn.CHANGED: session_service_pb2.RESERVE_OUTCOME_CHANGED,
}


def binding_message(document: BindingDocument) -> binding_pb2.Binding:
    """The binding as the contract shows it."""
    message = binding_pb2.Binding(
        binding_id=document["binding_id"],
        owner_id=document["owner_id"],
        agent_id=document["agent_id"],
        conversation_id=document["conversation_id"],
        epoch=document["epoch"],
        status=_STATUSES[document["status"]],
        turn=document["turn"],
        runtime_generation=document["runtime_generation"],
        native_session_id=document["native_session_id"],
        session_revision=document["session_revision"],
        used=document["used"],
        revision=revision_of(document),
    )
    pin, active, runtime_ref, head = document["pin"], document["active"], document["runtime_ref"], document["head"]
    if pin is not None:
        message.pin.CopyFrom(binding_pb2.AgentPin(**pin))
    if active is not None:
        message.active.CopyFrom(_active_message(active))
    for place in document["waiting"]:
        message.waiting.add(
            run_id=place["run_id"],
            request_key=place["request_key"],
            policy=_POLICIES[place["policy"]],
            since=_timestamp(place["since"]),
        )
    if runtime_ref is not None:
        message.runtime_ref.CopyFrom(runtime_ref_pb2.RuntimeRef(**runtime_ref))
    if head is not None:
        message.head.CopyFrom(_head_message(head))
    interrupt = document.get("interrupt")
    if interrupt is not None:
        message.interrupt.CopyFrom(_interrupt_message(interrupt))
    return message


def outcome_message(outcome: turn.Outcome) -> session_service_pb2.ReserveOutcome.ValueType:
    """What a reservation came to."""
    return _OUTCOMES[outcome]


def policy_of(policy: binding_pb2.ConflictPolicy.ValueType) -> Policy:
    """The conflict policy that was asked for; `reject` when none was."""
    return _POLICY_OF[policy]


def pin_of(message: binding_pb2.AgentPin) -> PinDocument:
    """The pin as it is kept."""
    return {
        "agent_version": message.agent_version,
        "harness_id": message.harness_id,
        "profile_id": message.profile_id,
    }


def fence_of(message: fence_pb2.Fence) -> Fence:
    """The parts of the envelope that are compared."""
    return Fence(
        protocol_version=message.protocol_version,
        binding_id=message.binding_id,
        epoch=message.epoch,
        runtime_generation=message.runtime_generation,
        turn=message.turn,
        run_id=message.run_id,
        run_generation=message.run_generation,
    )


def runtime_ref_of(message: runtime_ref_pb2.RuntimeRef) -> RuntimeRefDocument:
    """Where a runtime is, as it is kept."""
    return {"address": message.address, "incarnation": message.incarnation}


def outcome_text(outcome: payload_pb2.RunCompleted) -> str:
    """How a run ended, as it is kept: opaque to whoever keeps it."""
    return b64encode(outcome.SerializeToString(deterministic=True)).decode("ascii")


def asked_of(message: binding_pb2.Interrupt) -> Asked:
    """What a run asks, as it is kept: its content is opaque to whoever keeps it."""
    content = binding_pb2.Interrupt(
        requested=message.requested, namespace=message.namespace, reason=message.reason
    ).SerializeToString(deterministic=True)
    return Asked(message.requested.interrupt_id, message.requested.revision, b64encode(content).decode("ascii"))


def answer_of(message: session_service_pb2.InterruptAnswer) -> Answer:
    """Which interrupt is answered."""
    return Answer(message.run_id, message.interrupt_id, message.revision, message.decision_digest)


def milliseconds_of(timestamp: Timestamp) -> int:
    """Unix milliseconds."""
    return timestamp.ToMilliseconds()


def _active_message(active: ActiveDocument) -> binding_pb2.ActiveTurn:
    return binding_pb2.ActiveTurn(
        run_id=active["run_id"],
        request_key=active["request_key"],
        run_generation=active["run_generation"],
        since=_timestamp(active["since"]),
        uncertain=active["uncertain"],
    )


def _head_message(head: HeadDocument) -> binding_pb2.ThreadHead:
    return binding_pb2.ThreadHead(
        revision=head["revision"],
        run_id=head["run_id"],
        part_refs=head["part_refs"],
        outcome=payload_pb2.RunCompleted.FromString(b64decode(head["outcome"])),
    )


def _interrupt_message(interrupt: InterruptDocument) -> binding_pb2.Interrupt:
    message = binding_pb2.Interrupt.FromString(b64decode(interrupt["content"]))
    message.requested.interrupt_id = interrupt["interrupt_id"]
    message.revision = interrupt["revision"]
    message.run_id = interrupt["run_id"]
    message.consumed_by = interrupt["consumed_by"]
    message.decision_digest = interrupt["decision_digest"]
    return message


def _timestamp(milliseconds: int) -> Timestamp:
    seconds, rest = divmod(milliseconds, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)
