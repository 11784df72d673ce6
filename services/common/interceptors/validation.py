"""The constraints written in the contracts, enforced on every request message; all problems at once (REST API, "Field problems")."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import protovalidate
from google.protobuf.message import DecodeError

from services.common.errors import MAX_FIELD_ISSUES, FieldIssue, invalid_request

UNREADABLE: Final = object()
"""Stands for a message whose bytes are none of its type."""


def readable(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`parse`, but UNREADABLE where it fails: an exception in there would reach the client as it is, past every other interceptor."""

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return UNREADABLE

    return read


def whole(message: Any) -> Any:
    """The message. Raises `invalid_request` if it could not be read."""
    if message is UNREADABLE:
        raise invalid_request([FieldIssue("", "malformed_message", "The bytes are no message of the request's type.")])
    return message


def check_message(message: Any) -> None:
    """Raises `invalid_request` with every violated constraint of the message, at most 100, or for bytes that are no message."""
    violations = protovalidate.collect_violations(whole(message))
    if violations:
        raise invalid_request([_issue(violation.proto) for violation in violations[:MAX_FIELD_ISSUES]])


async def checked_messages(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The messages of a request stream, each checked before the servicer sees it."""
    async for message in messages:
        check_message(message)
        yield message


def _issue(violation: Any) -> FieldIssue:
    path = field_path(violation.field)
    return FieldIssue(path, violation.rule_id or "invalid", violation.message or "The value is not valid.")


def field_path(path: Any) -> str:
    """A violation's path as clients write it: `agent.tools[2].name`, `labels["team"]`."""
    text = ""
    for element in path.elements if path is not None else ():
        text += f".{element.field_name}" if text else element.field_name
        subscript = _subscript(element)
        if subscript is not None:
            text += f"[{subscript}]"
    return text


def _subscript(element: Any) -> str | None:
    subscript = element.subscript
    if subscript is None:
        return None
    return json.dumps(subscript.value, ensure_ascii=False)
