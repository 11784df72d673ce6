"""A validator of JSON Schema whose work is bounded by what it looks at: whoever chooses the values chooses no time (I35)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, cast

import jsonschema
import jsonschema.validators
from referencing import Registry

_NOTHING_ELSE: Final[Any] = cast(Any, Registry)()


def bounded_validator(max_matched_characters: int) -> Any:
    """The class of a validator of draft 2020-12. A text longer than `max_matched_characters` matches no `pattern`; nothing outside of the schema is looked
    up, least of all over the network.
    """

    def pattern(_: Any, wanted: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, str) and (len(instance) > max_matched_characters or not re.search(wanted, instance)):
            yield jsonschema.ValidationError("pattern")

    made: Any = cast(Any, jsonschema.validators).extend(
        jsonschema.Draft202012Validator, {"pattern": pattern, "uniqueItems": _unique_items}
    )

    def validator(schema: Mapping[str, Any]) -> Any:
        return made(schema, registry=_NOTHING_ELSE)

    return validator


def _unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    # The library compares each item with each other one where they cannot be sorted: minutes for what a request may hold.
    if wanted is True and isinstance(instance, list):
        items = cast("list[object]", instance)
        if len({_identity(item) for item in items}) < len(items):
            yield jsonschema.ValidationError("uniqueItems")


def _identity(value: object) -> Hashable:
    """The same for values that JSON Schema calls equal, and for no others: 1 is 1.0 and not true."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return "object", frozenset((name, _identity(child)) for name, child in pairs)
    if isinstance(value, list):
        return "list", tuple(_identity(child) for child in cast("list[object]", value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value).__name__, cast(Hashable, value)
    return "number", value
