"""`StartRunRequest` and `InvokeRequest` say the same of a turn: what one takes the other takes, with the same rules."""

from google.protobuf.descriptor import Descriptor

from buf.validate import validate_pb2
from harness.run.v1 import run_service_pb2


def fields_of(message: Descriptor) -> dict[str, tuple[object, ...]]:
    """Everything of a field that its wire form and its validation depend on."""
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.message_type and field.message_type.full_name,
            field.enum_type and field.enum_type.full_name,
            field.GetOptions().Extensions[validate_pb2.field].SerializeToString(deterministic=True),
        )
        for field in message.fields
    }


def test_invoke_takes_what_a_start_takes():
    start = fields_of(run_service_pb2.StartRunRequest.DESCRIPTOR)
    assert len(start) >= 8
    assert start == fields_of(run_service_pb2.InvokeRequest.DESCRIPTOR)


def test_the_comparison_sees_a_difference():
    start = fields_of(run_service_pb2.StartRunRequest.DESCRIPTOR)
    assert start["agent_id"] != start["conversation_id"]
    assert start["agent_id"][1:-1] == start["conversation_id"][1:-1]
