"""Plays what no provider would say, for certification: only where the operator's profile allows faults."""

from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
from google.protobuf import json_format

from adapters.sdk import events
from adapters.sdk.errors import ERRORS_BY_CATEGORY
from adapters.sdk.events import Draft


def rehearsed(message: str) -> list[Any] | None:
    """The steps that a message is, `{"rehearse": [step, …]}` or one step; None: it is an ordinary one."""
    if not message.startswith('{"rehearse"'):
        return None
    try:
        asked: Any = orjson.loads(message)["rehearse"]
    except (orjson.JSONDecodeError, KeyError):
        return None
    return cast("list[Any]", asked) if isinstance(asked, list) else [asked]


async def play(steps: list[Any]) -> AsyncIterator[Draft]:
    """Text, events and failures, as they are asked for."""
    for number, step in enumerate(steps):
        match step:
            case {"text": str(text)}:
                yield events.text(text, message_id=f"m{number}")
            case {"emit": {"type": str(kind), "data": data}}:
                yield json_format.ParseDict({"payload": {kind.replace(".", "_"): data}}, Draft())
            case {"fail": {"category": category, "message": told, **more}}:
                raise ERRORS_BY_CATEGORY[category](told, **more)
            case {"raise": text}:
                raise RuntimeError(text)
            case _:
                raise ERRORS_BY_CATEGORY["configuration"]("This step cannot be rehearsed.", code="step_invalid")
    yield events.completed()
