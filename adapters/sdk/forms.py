"""The form a model asks a person to fill in (interrupts, Forms): a tool's schema and description for the model, and the fields for the person.

An adapter gives its model a tool with `SCHEMA`, and reads what the model calls it with by `form_of`: the form of an `events.form_requested`.
"""

from collections.abc import Mapping
from typing import Any, cast

from harness.event.v1 import payload_pb2

MAX_FIELDS = 64
MAX_OPTIONS = 100
MAX_PROMPT_CHARACTERS = 4_000
MAX_LABEL_CHARACTERS = 200
MAX_DESCRIPTION_CHARACTERS = 1_000
ASK = "ask_person"
"""What the tool is called."""
DESCRIPTION = "Asks the person you work for to fill in a form, and gives you what they entered. Use it when you cannot go on without it."
_TYPES = {
    "string": payload_pb2.FORM_FIELD_TYPE_STRING,
    "number": payload_pb2.FORM_FIELD_TYPE_NUMBER,
    "boolean": payload_pb2.FORM_FIELD_TYPE_BOOLEAN,
    "choice": payload_pb2.FORM_FIELD_TYPE_CHOICE,
}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "prompt": {
            "type": "string",
            "maxLength": MAX_PROMPT_CHARACTERS,
            "description": "What you want to know, in a sentence or two.",
        },
        "fields": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_FIELDS,
            "items": {
                "type": "object",
                "properties": {
                    "name": {
                        "type": "string",
                        "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$",
                        "description": "Letters, digits and _.",
                    },
                    "label": {"type": "string", "maxLength": MAX_LABEL_CHARACTERS},
                    "type": {"type": "string", "enum": list(_TYPES)},
                    "required": {"type": "boolean"},
                    "options": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_OPTIONS},
                    "description": {"type": "string", "maxLength": MAX_DESCRIPTION_CHARACTERS},
                },
                "required": ["name", "label", "type"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["prompt", "fields"],
    "additionalProperties": False,
}


def form_of(arguments: Mapping[str, Any]) -> tuple[str, list[payload_pb2.FormField]]:
    """The question and the fields. Raises ValueError, with a sentence for the model, for what is no form."""
    prompt, given = arguments.get("prompt"), arguments.get("fields")
    items = cast("list[Any]", given) if isinstance(given, list) else []
    if not isinstance(prompt, str) or not 0 < len(items) <= MAX_FIELDS:
        raise ValueError(f"Give a prompt and 1 to {MAX_FIELDS} fields.")
    fields = [_field(item) for item in items]
    if len({each.name for each in fields}) != len(fields):
        raise ValueError("Give each field a name of its own.")
    return prompt[:MAX_PROMPT_CHARACTERS], fields


def _field(item: Any) -> payload_pb2.FormField:
    given = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    name, kind = given.get("name"), _TYPES.get(str(given.get("type")))
    if kind is None or not isinstance(name, str) or not name.isascii() or not name.isidentifier() or len(name) > 64:
        raise ValueError(
            "Each field needs a name of letters, digits and _, a label, and a type of string, number, boolean or choice."
        )
    listed: object = given.get("options")
    options = [str(option) for option in cast("list[Any]", listed)] if isinstance(listed, list) else []
    if (kind == payload_pb2.FORM_FIELD_TYPE_CHOICE) != bool(options) or len(options) > MAX_OPTIONS:
        raise ValueError(f"A field of type choice needs 1 to {MAX_OPTIONS} options, and no other has any.")
    return payload_pb2.FormField(
        name=name,
        label=str(given.get("label") or name)[:MAX_LABEL_CHARACTERS],
        type=kind,
        required=given.get("required") is True,
        options=options,
        description=str(given.get("description") or "")[:MAX_DESCRIPTION_CHARACTERS],
    )
