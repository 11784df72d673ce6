"""Whether arguments are within their bounds and their tool's schema, and what makes two calls the same (I25, I35). Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from google.protobuf import struct_pb2
from referencing.exceptions import Unresolvable

from services.common.errors import MAX_ISSUE_CHARACTERS, FieldIssue
from services.common.json_schema import bounded_validator
from services.runs import json_bounds

MAX_MATCHED_CHARACTERS: Final = 4_096
"""The longest text a `pattern` of a schema is applied to; a longer one does not match (I35)."""
MAX_ISSUES: Final = 100
MAX_PATH: Final = 200
MAX_TOLD_BYTES: Final = 3_072
"""Of the problems in a refusal to a runtime: it travels in trailers, and of those clients in other languages read no more than 8 KiB."""
_DIGEST_BYTES: Final = 20
_VALIDATOR: Final = bounded_validator(MAX_MATCHED_CHARACTERS)

Json = Any
"""A JSON value."""


def issues_of(schema: Mapping[str, Json], arguments: struct_pb2.Struct, path: str = "arguments") -> list[FieldIssue]:
    """Everything in which the arguments pass their bounds or their tool's schema, unknown keys included where the schema closes its objects."""
    bounds = json_bounds.issues_of(arguments, path, max_bytes=json_bounds.MAX_ARGUMENTS_BYTES)
    if bounds:
        return bounds
    try:
        document = plain(arguments)
    except ValueError:
        return [FieldIssue(path, "not_a_number", "NaN and infinities are no JSON numbers.")]
    validator: Any = _VALIDATOR(schema)
    try:
        found: list[Any] = list(islice(validator.iter_errors(document), MAX_ISSUES))
    except Unresolvable:
        return [FieldIssue(path, "schema_unusable", "The tool's schema refers to something outside of it.")]
    return [_issue(error, path) for error in found]


def told(issues: Sequence[FieldIssue]) -> list[FieldIssue]:
    """As many of the problems as a runtime can be told at once, and how many more there are (I35)."""
    left, kept = MAX_TOLD_BYTES, list[FieldIssue]()
    for issue in issues:
        left -= sum(len(part[:MAX_ISSUE_CHARACTERS].encode("utf-8", "replace")) for part in issue)
        if kept and left < 0:
            return [*kept, FieldIssue("arguments", "more", f"{len(issues) - len(kept)} more problems are not shown.")]
        kept.append(issue)
    return kept


def plain(arguments: struct_pb2.Struct) -> dict[str, Json]:
    """The arguments as JSON values. Errors: `ValueError` for what JSON has no number for."""
    return {name: plain_value(value) for name, value in arguments.fields.items()}


def as_json(value: Json) -> str:
    """The one JSON text of a value: keys sorted, no blanks. Errors: `ValueError` for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(tool_id: str, arguments: Mapping[str, Json]) -> str:
    """What makes two calls under one id the same call."""
    text = as_json([tool_id, dict(arguments)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def plain_value(value: struct_pb2.Value) -> Json:
    """A value as JSON. Errors: `ValueError` for what JSON has no number for."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [plain_value(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            if not math.isfinite(number):
                raise ValueError("not a JSON number")
            return int(number) if number.is_integer() else number
        case _:
            return None


def _issue(error: Any, path: str) -> FieldIssue:
    where = path
    for element in error.absolute_path:
        where += f"[{element}]" if isinstance(element, int) else f".{element}"
    where, keyword, wanted = where[:MAX_PATH], str(error.validator), cast(object, error.validator_value)
    match keyword:
        case "required":
            missing = [name for name in cast("list[str]", wanted) if name not in error.instance]
            return FieldIssue(where, "required", f"Missing: {', '.join(missing)}.")
        case "additionalProperties" | "unevaluatedProperties":
            return FieldIssue(where, "unknown_field", "Holds a key that the tool does not know.")
        case "type":
            return FieldIssue(where, "wrong_type", f"Expected {wanted}.")
        case _:
            # The words are the schema's: what the arguments hold is not repeated.
            return FieldIssue(where, "out_of_schema", f"Does not fit the schema's {keyword}: {wanted}.")
