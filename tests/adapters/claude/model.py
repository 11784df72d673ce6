"""A model's provider for these tests: answers what a test lays down, and keeps what it was sent."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Step = dict[str, Any]
USAGE = {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}


@dataclass
class Refused:
    """An answer that is none."""

    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    # Planted, to be found nowhere.
    message: str = "canary-of-the-provider"


HANGS = object()
"""No answer at all."""
Answer = list[Step] | Refused | object


def text(*pieces: str) -> Step:
    """Text, in these pieces."""
    return {"kind": "text", "pieces": pieces}


def thinking(said: str) -> Step:
    """Reasoning."""
    return {"kind": "thinking", "said": said}


def call(name: str, identity: str, **arguments: Any) -> Step:
    """A tool call."""
    return {"kind": "tool_use", "name": name, "id": identity, "input": arguments}


def portable(name: str, identity: str, **arguments: Any) -> Step:
    """A call of a portable tool, or of one beside them."""
    return call(f"mcp__harness__{name}", identity, **arguments)


def waits(event: asyncio.Event, *, then: str = "goes on") -> Step:
    """Nothing more until the event; `then` the answer goes on, or its connection is cut."""
    return {"kind": "waits", "event": event, "then": then}


class Model:
    """The provider. `answers` are given in order, the last of `always` once they are used up."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.always: Answer = [text("ok")]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.came = asyncio.Event()
        self.url = ""
        self._open: set[asyncio.Task[None]] = set()

    def script(self, *answers: Answer) -> None:
        """What it answers next; the last also from then on."""
        self.answers, self.always = list(answers), answers[-1]
        self.came.clear()

    @property
    def said(self) -> list[tuple[str, str]]:
        """Who said what in the last request, without what the program says of its surroundings."""
        told: list[tuple[str, str]] = []
        for message in self.requests[-1]["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts = [
                one["text"]
                for one in blocks
                if one["type"] == "text" and not one["text"].startswith("<system-reminder>")
            ]
            if texts and message["role"] != "system":
                told.append((message["role"], "".join(texts)))
        return told

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the connection's end, whoever ended it
        finally:
            self._open.discard(task)
            writer.close()

    async def close(self) -> None:
        """Ends what is open."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if not first.startswith("POST /v1/messages"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
            return
        self.requests.append(json.loads(body))
        self.headers.append(headers)
        answer = self.answers.pop(0) if self.answers else self.always
        self.came.set()
        if answer is HANGS:
            await asyncio.Event().wait()
        if isinstance(answer, Refused):
            _refuse(writer, answer)
        else:
            await self._stream(writer, answer)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, steps: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        usage = {**USAGE, "output_tokens": 1}
        message = {"id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "content": []}
        message |= {"model": self.requests[-1]["model"], "stop_reason": None, "stop_sequence": None, "usage": usage}
        _event(writer, "message_start", message=message)
        index, stop = 0, "end_turn"
        for step in steps:
            if step["kind"] == "waits":
                await writer.drain()
                await step["event"].wait()
                if step["then"] == "cut":
                    raise ConnectionError
                continue
            start, deltas = _block(step)
            _event(writer, "content_block_start", index=index, content_block=start)
            for delta in deltas:
                _event(writer, "content_block_delta", index=index, delta=delta)
            _event(writer, "content_block_stop", index=index)
            index += 1
            stop = "tool_use" if step["kind"] == "tool_use" else stop
        _event(writer, "message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=USAGE)
        _event(writer, "message_stop")
        writer.write(b"0\r\n\r\n")


def _block(step: Step) -> tuple[Step, list[Step]]:
    match step["kind"]:
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": one} for one in step["pieces"]]
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": step["said"]},
                {"type": "signature_delta", "signature": "c2ln"},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case _:
            start = {"type": "tool_use", "id": step["id"], "name": step["name"], "input": {}}
            return start, [{"type": "input_json_delta", "partial_json": json.dumps(step["input"])}]


def _refuse(writer: asyncio.StreamWriter, answer: Refused) -> None:
    body = json.dumps({"type": "error", "error": {"type": "some_error", "message": answer.message}}).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    writer.write(f"HTTP/1.1 {answer.status} X\r\ncontent-type: application/json\r\n{headers}".encode())
    writer.write(f"content-length: {len(body)}\r\n\r\n".encode() + body)


def _event(writer: asyncio.StreamWriter, kind: str, **data: Any) -> None:
    body = f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(body), body))


@asynccontextmanager
async def serving(path: str = "") -> AsyncGenerator[Model, None]:
    """A provider on loopback, or on the unix socket `path`."""
    model = Model()
    if path:
        server = await asyncio.start_unix_server(model.serve, path)
    else:
        server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
        model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield model
    finally:
        server.close()
        await model.close()
