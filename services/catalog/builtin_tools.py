"""The tools every mesh has: what a model is told of them. The tool broker runs them; an operator decides whether they are registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

BUILTIN: Final = "builtin"
"""What `provider` says of such a tool in the operator file and in a grant."""


class BuiltinTool(NamedTuple):
    """A built-in tool as it is registered unless the operator says otherwise. Its id and its arguments are fixed."""

    description: str
    input_schema: Mapping[str, Any]
    sensitive: bool
    idempotent: bool


BUILTIN_TOOLS: Final[Mapping[str, BuiltinTool]] = {
    "clock": BuiltinTool(
        "Tells the current date and time.",
        {
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "description": "IANA name of a time zone, such as Europe/Paris. Default: UTC.",
                    "minLength": 1,
                    "maxLength": 64,
                }
            },
            "additionalProperties": False,
        },
        sensitive=False,
        idempotent=True,
    ),
    "calculator": BuiltinTool(
        "Works out an arithmetic expression and gives its value.",
        {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "Decimal numbers, parentheses and the operators + - * / // % **, such as (2 + 3) * 4.",
                    "minLength": 1,
                    "maxLength": 1000,
                }
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
        sensitive=False,
        idempotent=True,
    ),
    "http_get": BuiltinTool(
        "Fetches a page by HTTP GET from one of the hosts the operator allows, and gives its status and text.",
        {
            "type": "object",
            "properties": {
                "url": {
                    "type": "string",
                    "description": "An absolute https or http address.",
                    "minLength": 1,
                    "maxLength": 2048,
                }
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        sensitive=True,
        idempotent=True,
    ),
}
