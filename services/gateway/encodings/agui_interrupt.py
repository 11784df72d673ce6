"""What an AG-UI client is told of a pause: the outcome `interrupt` of RUN_FINISHED."""

from typing import Any

_SCHEMA_TYPES = {"string": "string", "number": "number", "boolean": "boolean", "choice": "string"}


def interrupt_outcome(interrupted: dict[str, Any], requested: dict[str, Any] | None) -> dict[str, Any]:
    """The outcome of a run that waits. `interrupted` and `requested` are the data of `run.interrupted` and `interrupt.requested`.

    A pause is one interrupt, however many calls it asks about, because one decision answers it; its revision and what is
    asked are in `metadata`, in canonical form.
    """
    asked = dict(requested or {})
    asked.pop("interrupt_id", None)
    interrupt: dict[str, Any] = {
        "id": interrupted["interrupt_id"],
        "reason": asked.get("interrupt_type", "interrupted"),
        "message": asked.pop("prompt", interrupted.get("reason", "")),
    }
    approvals = asked.get("tool_approvals", [])
    if len(approvals) == 1:
        interrupt["toolCallId"] = approvals[0]["tool_call_id"]
    if asked.get("fields"):
        interrupt["responseSchema"] = _form_schema(asked["fields"])
    interrupt["metadata"] = asked
    return {"type": "interrupt", "interrupts": [interrupt]}


def _form_schema(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON Schema of the form's values."""
    return {
        "type": "object",
        "properties": {form_field["name"]: _field_schema(form_field) for form_field in fields},
        "required": [form_field["name"] for form_field in fields if form_field["required"]],
        "additionalProperties": False,
    }


def _field_schema(form_field: dict[str, Any]) -> dict[str, Any]:
    kind = form_field.get("type")
    # A type of a newer contract takes any value.
    schema: dict[str, Any] = {"type": _SCHEMA_TYPES[kind]} if kind in _SCHEMA_TYPES else {}
    if "label" in form_field:
        schema["title"] = form_field["label"]
    if "description" in form_field:
        schema["description"] = form_field["description"]
    if kind == "choice":
        schema["enum"] = form_field["options"]
    return schema
