"""What of a draft clients may see (events, Vocabulary: private fields are stripped before the log)."""

from harness.event.v1 import event_pb2, payload_pb2


def public_payload(draft: event_pb2.EventDraft) -> payload_pb2.EventPayload:
    """The draft's payload without what is for operators only (I22). The native id and pending state are not in it at all."""
    payload = draft.payload
    if payload.WhichOneof("kind") != "run_failed":
        return payload
    copy = payload_pb2.EventPayload()
    copy.CopyFrom(payload)
    copy.run_failed.ClearField("provider_code")
    copy.run_failed.ClearField("diagnostic")
    return copy
