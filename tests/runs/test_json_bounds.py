"""The bounds of a JSON object of a client: each is the last that is allowed, and the next is not."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import struct_pb2

from services.runs.json_bounds import MAX_JSON_BYTES, MAX_KEYS, MAX_LEVELS, issues_of


def problems(context: dict[str, Any]) -> list[str]:
    message = struct_pb2.Struct()
    message.update(context)
    return [issue.code for issue in issues_of(message, "client_context")]


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"a": value}


def keys(number: int) -> dict[str, Any]:
    half = number // 2
    return {**{f"k{n}": n for n in range(half - 1)}, "inner": {f"k{n}": None for n in range(number - half)}}


@pytest.mark.parametrize(
    ("fits", "does_not", "code"),
    [
        (nested(MAX_LEVELS), nested(MAX_LEVELS + 1), "too_deep"),
        (keys(MAX_KEYS), keys(MAX_KEYS + 1), "too_many_keys"),
        ({"a": "x" * (MAX_JSON_BYTES - 8)}, {"a": "x" * (MAX_JSON_BYTES - 7)}, "too_large"),
        ({"a": "é" * 32_000}, {"a": "é" * 33_000}, "too_large"),
        ({"a": [1.0] * 32_000}, {"a": [1.0] * 33_000}, "too_large"),
    ],
)
def test_i35_bounds_of_the_context(fits: dict[str, Any], does_not: dict[str, Any], code: str) -> None:
    assert problems(fits) == []
    assert problems(does_not) == [code]


def test_all_that_is_too_much_is_said_at_once() -> None:
    assert problems({**keys(300), "b": nested(9), "c": "x" * 70_000}) == ["too_deep", "too_many_keys", "too_large"]
