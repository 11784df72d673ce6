"""Plays the script of one invocation on one connection."""

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Any

from tests.standins.agentcore.errors import Refused
from tests.standins.agentcore.frames import CONTENT_TYPE, event, exception
from tests.standins.agentcore.http import Reply
from tests.standins.agentcore.script import Step
from tests.standins.agentcore.sessions import Session
from tests.standins.agentcore.speaker import Speaker

SESSION_HEADER = "x-amzn-bedrock-agentcore-runtime-session-id"


class Player:
    """One invocation of a managed harness. `told` is the request, as the model would be told of it."""

    def __init__(self, reply: Reply, session: Session, session_id: str, told: dict[str, Any]) -> None:
        self._reply, self._session, self._told = reply, session, told
        self._headers = {SESSION_HEADER: session_id}
        self._speaker = Speaker()
        self._stopped = session.stopped

    async def play(self, steps: list[Step]) -> None:
        """Plays the steps and ends the turn. Errors: Refused, before anything was sent."""
        if steps and "refuse" in steps[0]:
            first = steps[0]
            raise Refused(first["refuse"], first.get("message", "Refused by the script."), first.get("retry_after"))
        if steps and steps[0].get("hang") == "headers":
            return await self._hang()
        await self._reply.begin(CONTENT_TYPE, self._headers)
        for number, step in enumerate(steps):
            if "tools" in step:
                return await self._call(step, steps[number + 1 :])
            if await self._ends(step):
                return None
        await self._send(self._speaker.finish())
        return await self._reply.end()

    async def _call(self, step: Step, rest: list[Step]) -> None:
        """Inline functions: the client makes the calls, and comes again with their results."""
        self._session.rest, self._session.asked = rest, tuple(call["id"] for call in step["tools"])
        calls = [{**call, "name": _offered(call["name"], self._told.get("tools", []))} for call in step["tools"]]
        await self._send(self._speaker.calls(calls, step.get("pieces", 1)))
        await self._reply.end()

    async def _ends(self, step: Step) -> bool:
        """Plays a step; True: nothing comes after it."""
        speaker = self._speaker
        match step:
            case {"text": str(text)}:
                await self._send(speaker.text([text]))
            case {"chunks": list(pieces)}:
                await self._send(speaker.text(pieces))
            case {"burst": int(count), "size": int(size)}:
                await self._send(speaker.text(["x" * size] * count))
            case {"reasoning": str(text)}:
                await self._send(speaker.reasoning(text))
            case {"own_tool": dict(call)}:
                await self._send(speaker.own_call(call))
            case {"usage": dict(counts)}:
                await self._send([speaker.usage(counts)])
            case {"results": _}:
                await self._send(speaker.text([json.dumps(self._session.results)]))
            case {"told": _}:
                await self._send(speaker.text([json.dumps(self._told)]))
            case {"stop": str(reason)}:
                await self._send(speaker.finish(reason))
                await self._reply.end()
                return True
            case {"hook": str(kind)}:
                await self._send([speaker.hook(kind)])
            case {"event": str(kind)}:
                await self._send([event(kind, step.get("data", {}))])
            case {"exception": str(kind)}:
                await self._send([exception(kind, {"message": step.get("message", "Failed by the script.")})])
                await self._reply.end()
                return True
            case {"end": str(how)}:
                await self._end(how)
                return True
            case {"hang": _}:
                await self._hang()
                return True
            case {"pause": seconds}:
                await asyncio.sleep(seconds)
            case _:
                raise Refused("ValidationException", f"The stand-in knows no such step: {json.dumps(step)[:200]}")
        return False

    async def _end(self, how: str) -> None:
        if how == "cut":
            self._reply.cut()
            return
        if how == "half":
            whole = event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "never whole"}})
            await self._reply.chunk(whole[: len(whole) // 2])
        await self._reply.end()

    async def _hang(self) -> None:
        await self._stopped.wait()
        if not self._reply.started:
            raise Refused("RuntimeClientError", "The session was stopped.")
        await self._reply.end()

    async def _send(self, frames: Iterable[bytes]) -> None:
        # Frames of a step go together: as many small writes cost more than what is measured against this server.
        waiting: list[bytes] = []
        size = 0
        for each in frames:
            waiting.append(each)
            size += len(each)
            if size > 32 << 10:
                await self._reply.chunk(b"".join(waiting))
                waiting, size = [], 0
        if waiting:
            await self._reply.chunk(b"".join(waiting))


def _offered(name: str, tools: list[dict[str, Any]]) -> str:
    """The tool that a script means, by the name under which the request offers it: the service's names have no dots."""
    plain = _plain(name)
    offered = [tool.get("name", "") for tool in tools]
    return next((each for each in offered if _plain(each).startswith(plain)), plain)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)


class RuntimePlayer:
    """One invocation of a custom runtime: its body is opaque to the service."""

    def __init__(self, reply: Reply, session: Session, session_id: str) -> None:
        self._reply, self._session = reply, session
        self._headers = {SESSION_HEADER: session_id}
        self._stopped = session.stopped

    async def play(self, steps: list[Step]) -> None:
        """Plays the steps: a whole body, or lines of a stream. Errors: Refused, before anything was sent."""
        if steps and "refuse" in steps[0]:
            first = steps[0]
            raise Refused(first["refuse"], first.get("message", "Refused by the script."), first.get("retry_after"))
        if steps and steps[0].get("hang") == "headers":
            await self._stopped.wait()
            raise Refused("RuntimeClientError", "The session was stopped.")
        if steps and "body" in steps[0]:
            return await self._whole(steps[0])
        await self._reply.begin("text/event-stream", self._headers)
        for step in steps:
            match step:
                case {"line": line}:
                    await self._line(line)
                case {"text": str(text)}:
                    await self._line({"text": text})
                case {"chunks": list(pieces)}:
                    for piece in pieces:
                        await self._line({"text": piece})
                case {"fail": dict(failure)}:
                    await self._line(failure)
                case {"bytes": str(raw)}:
                    await self._reply.chunk(raw.encode())
                case {"pause": seconds}:
                    await asyncio.sleep(seconds)
                case {"end": "cut"}:
                    return self._reply.cut()
                case {"end": "half"}:
                    await self._reply.chunk(b'data: {"text": "never wh')
                    return await self._reply.end()
                case {"hang": _}:
                    await self._stopped.wait()
                    return await self._reply.end()
                case _:
                    return await self._line({"error": "no such step", "error_type": "ValueError", "message": str(step)})
        return await self._reply.end()

    async def _whole(self, step: Step) -> None:
        said = step["body"]
        raw = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        kind = step.get("type", "text/plain" if isinstance(said, str) else "application/json")
        await self._reply.whole(step.get("status", 200), raw, {**self._headers, "content-type": kind})

    async def _line(self, line: Any) -> None:
        said = line if isinstance(line, str) else f"data: {json.dumps(line)}\n\n"
        await self._reply.chunk(said.encode())
