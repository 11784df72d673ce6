"""A form as a model asks for one: what the schema takes and what `form_of` reads are the same, and what is none is told to the model."""

from typing import Any

import jsonschema
import pytest

from adapters.sdk.forms import MAX_FIELDS, MAX_OPTIONS, SCHEMA, form_of
from harness.event.v1 import payload_pb2

FIELD = {
    "name": "size",
    "label": "Size",
    "type": "choice",
    "options": ["s", "m"],
    "required": True,
    "description": "Of it.",
}
PLAIN = {"name": "a", "label": "A", "type": "string"}


def test_a_form_is_read():
    prompt, fields = form_of({"prompt": "Which one?", "fields": [FIELD, PLAIN]})
    assert prompt == "Which one?"
    assert fields == [
        payload_pb2.FormField(
            name="size",
            label="Size",
            type=payload_pb2.FORM_FIELD_TYPE_CHOICE,
            required=True,
            options=["s", "m"],
            description="Of it.",
        ),
        payload_pb2.FormField(name="a", label="A", type=payload_pb2.FORM_FIELD_TYPE_STRING),
    ]
    jsonschema.validate({"prompt": "Which one?", "fields": [FIELD, PLAIN]}, SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"prompt": "p"},
        {"prompt": 5, "fields": [PLAIN]},
        {"prompt": "p", "fields": []},
        {"prompt": "p", "fields": [PLAIN] * (MAX_FIELDS + 1)},
        {"prompt": "p", "fields": ["a"]},
        {"prompt": "p", "fields": [{**PLAIN, "type": "colour"}]},
        {"prompt": "p", "fields": [{**PLAIN, "name": "with space"}]},
        {"prompt": "p", "fields": [{**PLAIN, "name": "größe"}]},
        {"prompt": "p", "fields": [{**FIELD, "options": ["x"] * (MAX_OPTIONS + 1)}]},
    ],
)
def test_what_the_schema_refuses_is_no_form(wrong: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)
    with pytest.raises(ValueError, match=r"prompt|field"):
        form_of(wrong)


@pytest.mark.parametrize(
    "wrong", [[PLAIN, PLAIN], [{**FIELD, "options": []}], [{**PLAIN, "options": ["x"]}], [{**FIELD, "options": "s"}]]
)
def test_what_a_schema_cannot_say_is_told_to_the_model(wrong: list[Any]):
    with pytest.raises(ValueError, match="field"):
        form_of({"prompt": "p", "fields": wrong})
