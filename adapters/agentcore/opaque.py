"""What a custom runtime answers, decoded as it comes: server-sent events, lines of JSON, one JSON document, or plain text.

The service passes a container's bytes through, and with them its errors: an object with `error` in an answer that is otherwise well.
"""

import codecs
from collections.abc import Iterator, Mapping
from typing import Any, cast

import orjson

from adapters.agentcore.streams import malformed
from adapters.sdk.errors import POSSIBLE_SIDE_EFFECTS, UnavailableError

MAX_LINE_BYTES = 1024 * 1024
"""A line, or a whole JSON document (I35)."""
MAX_DEPTH = 6
_NAMES = ("text", "delta", "data", "content", "result", "response", "output", "answer", "completion", "message")


class Texts:
    """The texts in JSON values. Without a path, the first name that has a text is the one for the rest of the stream: what an answer is told
    piece by piece often stands in its last object once more.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path.split(".") if path else []
        self._name = ""

    def of(self, value: Any) -> str:
        """The text of one value, empty if it has none. Raises UnavailableError for an error that the agent told."""
        if not isinstance(value, dict):
            return _joined(value, MAX_DEPTH)
        given = cast("dict[str, Any]", value)
        if given.get("error"):
            raise UnavailableError(
                "The agent failed at the provider.",
                code="agent_failed",
                retryable=False,
                side_effects=POSSIBLE_SIDE_EFFECTS,
            )
        if self._path:
            return _joined(_at(given, self._path), MAX_DEPTH)
        for name in (self._name,) if self._name else _NAMES:
            if text := _joined(given.get(name), MAX_DEPTH):
                self._name = name
                return text
        return ""


class Lines:
    """Server-sent events, or lines of JSON: a line is decoded as soon as it is whole."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """The texts that are whole now."""
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        for line in whole:
            yield from self._line(bytes(line))
        if len(self._rest) > MAX_LINE_BYTES:
            raise malformed("line too long")

    def end(self) -> Iterator[str]:
        """What the last line says, if nothing followed it."""
        rest, self._rest = bytes(self._rest), bytearray()
        yield from self._line(rest)

    def _line(self, line: bytes) -> Iterator[str]:
        if len(line) > MAX_LINE_BYTES:
            raise malformed("line too long")
        said = line.strip()
        if said.startswith(b"data:"):
            said = said[5:].strip()
        elif not said.startswith((b"{", b"[", b'"')):
            # Comments, and other fields of an event.
            return
        if said in (b"", b"[DONE]"):
            return
        if text := self._texts.of(_parsed(said)):
            yield text


class Document:
    """One JSON document."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._whole = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Nothing before the end."""
        self._whole += data
        if len(self._whole) > MAX_LINE_BYTES:
            raise malformed("document too large")
        yield from ()

    def end(self) -> Iterator[str]:
        """Its text."""
        if text := self._texts.of(_parsed(bytes(self._whole))) if self._whole.strip() else "":
            yield text


class PlainText:
    """Text in UTF-8; a character that comes in two pieces waits for the second."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> Iterator[str]:
        """The characters that are whole now."""
        if text := self._decoder.decode(data):
            yield text

    def end(self) -> Iterator[str]:
        """A mark in the place of half a character."""
        if text := self._decoder.decode(b"", final=True):
            yield text


Decoder = Lines | Document | PlainText


def decoder_for(content_type: str, path: str = "") -> Decoder:
    """The decoder of a media type; what is not known is text."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("text/event-stream", "application/x-ndjson", "application/jsonlines", "application/jsonl"):
        return Lines(Texts(path))
    if kind == "application/json" or kind.endswith("+json"):
        return Document(Texts(path))
    return PlainText()


def _parsed(said: bytes) -> Any:
    try:
        return orjson.loads(said)
    except orjson.JSONDecodeError:
        raise malformed("line is no JSON") from None


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


def _joined(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if depth == 0:
        return ""
    if isinstance(value, list):
        return "".join(_joined(one, depth - 1) for one in cast("list[Any]", value))
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return next((text for name in _NAMES if (text := _joined(given.get(name), depth - 1))), "")
    return ""
