"""A turn of a custom runtime: a payload in the shape the operator gave, and an answer of whatever shape the container has."""

import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, cast

import orjson

from adapters.agentcore.invocation import invoke
from adapters.agentcore.managed import Setting
from adapters.agentcore.opaque import Decoder, decoder_for
from adapters.agentcore.rehearsal import lots_of, plain_text
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import POSSIBLE_SIDE_EFFECTS, UnavailableError
from adapters.sdk.events import Draft
from adapters.sdk.rehearsal import rehearsal_of

READ_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,15}")


async def stream_custom(turn: Turn, setting: Setting) -> AsyncGenerator[Draft, None]:
    """The turn's events. The container says no more than text: the end of its answer is the end of the turn."""
    profile = setting.profile
    asked: dict[str, Any] = {
        "agentRuntimeArn": setting.arn,
        "runtimeSessionId": setting.session_id,
        "payload": orjson.dumps(_filled(profile.payload, _words(turn, setting))),
        "contentType": "application/json",
        "accept": "text/event-stream, application/json, text/plain",
    }
    if profile.qualifier:
        asked["qualifier"] = profile.qualifier
    if turn.traceparent:
        asked["traceParent"] = turn.traceparent
    decoder: Decoder | None = None
    rehearsal = rehearsal_of(turn)
    lots = (
        invoke(
            setting.connections,
            lambda client: _read(client, asked),
            retries=profile.max_retries,
            deadline=turn.deadline,
        )
        if rehearsal is None
        else lots_of(rehearsal, plain_text)
    )
    async with contextlib.aclosing(lots):
        async for lot in lots:
            if isinstance(lot, Draft):
                yield lot
                continue
            for piece in lot:
                if isinstance(piece, str):
                    decoder = decoder_for(piece, profile.text_path)
                elif decoder is not None:
                    for text in decoder.feed(piece):
                        yield events.text(text)
    for text in decoder.end() if decoder is not None else ():
        yield events.text(text)
    yield events.completed()


def _read(client: Any, asked: Mapping[str, Any]) -> Iterator[str | bytes]:
    """The media type, then the bytes as they come."""
    response = client.invoke_agent_runtime(**asked)
    yield str(response.get("contentType") or "")
    # The body's own readers hold lines back until a block is full.
    raw: Any = response["response"]._raw_stream
    length = str(response["ResponseMetadata"]["HTTPHeaders"].get("content-length", ""))
    size = 0
    with contextlib.closing(raw):
        while data := raw.read1(READ_BYTES):
            size += len(data)
            yield data
    if _LENGTH.fullmatch(length) and size < int(length):
        raise UnavailableError(
            "The connection to the provider broke.", code="stream_broken", side_effects=POSSIBLE_SIDE_EFFECTS
        )


def _words(turn: Turn, setting: Setting) -> Mapping[str, str]:
    return {
        "$message": turn.message,
        "$system_prompt": turn.system_prompt,
        "$session_id": setting.session_id,
        "$user_id": turn.user_id,
    }


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return words.get(value, value)
    if isinstance(value, list):
        return [_filled(one, words) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _filled(one, words) for name, one in cast("dict[str, Any]", value).items()}
    return value
