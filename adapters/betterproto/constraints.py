"""The constraints that the contracts state for their messages, held to what was decoded: a request that breaks one reaches nothing."""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import betterproto2
from betterproto_contracts.constraints import CONSTRAINTS, REQUIRED_ONEOFS

from adapters.betterproto.errors import invalid

_PACKAGE = "betterproto_contracts."
Rules = Mapping[str, Any]


def check(message: betterproto2.Message, where: str = "") -> None:
    """Raises Refusal (INVALID_ARGUMENT) that names the first field that breaks a constraint, here or further inside."""
    cls: Any = type(message)
    if not cls.__module__.startswith(f"{_PACKAGE}harness."):
        return
    name = f"{cls.__module__.removeprefix(_PACKAGE)}.{cls.__name__}"
    rules: Mapping[str, Rules] = CONSTRAINTS.get(name, {})
    for field in dataclasses.fields(cls):
        path = f"{where}.{field.name}" if where else field.name
        value = getattr(message, field.name)
        _field(value, rules.get(field.name, {}), path)
        for index, inner in enumerate(_inside(value)):
            check(inner, f"{path}[{index}]" if isinstance(value, list) else path)
    for oneof in REQUIRED_ONEOFS.get(name, ()):
        if not betterproto2.which_one_of(message, oneof)[0]:
            raise invalid(f"{where}.{oneof}" if where else oneof, "one of its fields must be given")


def _inside(value: Any) -> Sequence[betterproto2.Message]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, betterproto2.Message)]


def _field(value: Any, rules: Rules, path: str) -> None:
    if value is None:
        if rules.get("required"):
            raise invalid(path, "it is missing")
        return
    for kind, of in rules.items():
        if kind == "repeated":
            _items(value, of, path)
        elif kind == "map":
            _pairs(value, of, path)
        elif kind != "required":
            _value(value, kind, of, path)
    if rules.get("required") and not value and not isinstance(value, betterproto2.Message):
        raise invalid(path, "it is missing")


def _items(values: Sequence[Any], rules: Rules, path: str) -> None:
    if not rules.get("min_items", 0) <= len(values) <= rules.get("max_items", len(values)):
        raise invalid(path, f"it has {len(values)} items, which is not as many as the contract allows")
    if rules.get("unique") and len(set(values)) < len(values):
        raise invalid(path, "it names something twice")
    for value in values:
        _field(value, rules.get("items", {}), path)


def _pairs(pairs: Mapping[Any, Any], rules: Rules, path: str) -> None:
    if len(pairs) > rules.get("max_pairs", len(pairs)):
        raise invalid(path, f"it has {len(pairs)} entries, which are more than the contract allows")
    for key, value in pairs.items():
        _field(key, rules.get("keys", {}), path)
        _field(value, rules.get("values", {}), path)


def _value(value: Any, kind: str, rules: Rules, path: str) -> None:
    for name, bound in rules.items():
        if not _HOLDS[kind, name](value, bound):
            raise invalid(path, "it does not have the form of the contract")


def _is_one_of_its_enum(value: enum.IntEnum, bound: bool) -> bool:
    return not bound or value in list(type(value))


@cache
def _pattern(text: str) -> re.Pattern[str]:
    # The contract's `$` is the end of the text; here it would be the end of its last line.
    return re.compile(text.removesuffix("$") + r"\Z")


# All that the contracts use; a kind or rule that is new to them is a KeyError, and a test plays every one of them.
_HOLDS: dict[tuple[str, str], Callable[[Any, Any], bool]] = {
    ("string", "pattern"): lambda value, bound: _pattern(bound).search(value) is not None,
    ("string", "min_len"): lambda value, bound: len(value) >= bound,
    ("string", "max_len"): lambda value, bound: len(value) <= bound,
    ("string", "max_bytes"): lambda value, bound: len(value.encode()) <= bound,
    ("string", "in"): lambda value, bound: value in bound,
    ("uint32", "gte"): lambda value, bound: value >= bound,
    ("uint32", "lte"): lambda value, bound: value <= bound,
    ("enum", "defined_only"): _is_one_of_its_enum,
    ("enum", "not_in"): lambda value, bound: int(value) not in bound,
    ("bool", "const"): lambda value, bound: value is bound,
}
