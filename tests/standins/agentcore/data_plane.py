"""InvokeHarness, InvokeAgentRuntime, StopRuntimeSession: what they refuse, and which script they play."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.standins.agentcore.errors import Refused
from tests.standins.agentcore.http import Reply, Request
from tests.standins.agentcore.player import SESSION_HEADER, Player, RuntimePlayer
from tests.standins.agentcore.script import Step, newest_user_text, steps_in, texts_of, tool_results
from tests.standins.agentcore.sessions import Session, Sessions

_SESSION_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{32,99}")
_HARNESS_ARN = re.compile(
    r"arn:[^:]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:harness/[a-zA-Z][a-zA-Z0-9_]{0,39}-[a-zA-Z0-9]{10}"
)


class DataPlane:
    """Plays queued scripts first, then what a message says."""

    def __init__(self, harness_known: Callable[[str], bool]) -> None:
        self.sessions = Sessions()
        self.queue: deque[list[Step]] = deque()
        self._harness_known = harness_known

    async def invoke_harness(self, request: Request, reply: Reply) -> None:
        """One turn of a managed harness, or its continuation with tool results."""
        arn = request.query.get("harnessArn", [""])[0]
        if not _HARNESS_ARN.fullmatch(arn):
            raise Refused("ValidationException", "harnessArn is no ARN of a harness.")
        if not self._harness_known(arn):
            raise Refused("ResourceNotFoundException", "No such harness.")
        session_id = _session_id(request)
        asked = request.document
        messages = asked.get("messages") or []
        if not messages:
            raise Refused("ValidationException", "messages is empty.")
        session = self.sessions.of(arn, session_id)
        steps = self._continued(session, messages) or self._begun(session, newest_user_text(messages))
        told = {name: value for name, value in asked.items() if name != "messages"}
        await _working(session, Player(reply, session, session_id, told).play(steps))

    async def invoke_runtime(self, request: Request, reply: Reply) -> None:
        """One invocation of a custom runtime."""
        session_id = _session_id(request)
        session = self.sessions.of(request.path[1], session_id)
        raw = request.body.decode(errors="replace")
        try:
            texts = [raw] if raw.startswith('{"script"') else texts_of(request.document)
        except ValueError:
            texts = [raw]
        await _working(session, RuntimePlayer(reply, session, session_id).play(self._begun(session, texts)))

    async def stop(self, request: Request, reply: Reply) -> None:
        """Ends a session's agent, and the streams that it still feeds."""
        session_id = _session_id(request)
        if not self.sessions.stop(session_id):
            raise Refused("ResourceNotFoundException", "No such session.")
        await reply.whole(200, {}, {SESSION_HEADER: session_id})

    def _continued(self, session: Session, messages: list[dict[str, Any]]) -> list[Step] | None:
        results = tool_results(messages)
        if not results:
            return None
        # As the real service: a result nobody asked for, and a call without its result, are refused.
        given = tuple(result["toolUseId"] for result in results)
        if session.rest is None or sorted(given) != sorted(session.asked):
            raise Refused("ValidationException", f"toolResult does not match toolUse: {given}, asked {session.asked}.")
        rest, session.rest, session.asked = session.rest, None, ()
        session.results = results
        if newest_user_text(messages):
            # Results and words: a person said something else instead, and what was to come after the results is over.
            return None
        # An empty rest is a turn that says nothing more; it is not an absent one.
        return rest or [{"stop": "end_turn"}]

    def _begun(self, session: Session, texts: list[str]) -> list[Step]:
        session.rest, session.asked = None, ()
        if self.queue:
            return list(self.queue.popleft())
        for text in texts:
            try:
                steps = steps_in(text)
            except (ValueError, KeyError) as error:
                raise Refused("ValidationException", f"The script cannot be read: {error}") from None
            if steps is not None:
                return steps
        return [{"text": self._talk(session, " ".join(texts))}]

    def _talk(self, session: Session, said: str) -> str:
        before = session.heard[-1] if session.heard else ""
        session.heard = [*session.heard[-9:], said]
        return f"You said: {said}" + (f" Before that you said: {before}" if before else "")


async def _working(session: Session, turn: Coroutine[Any, Any, None]) -> None:
    """Plays a turn. A client that goes away (CancelledError) leaves the agent working, as it does in the real service."""
    session.working += 1
    before = session.stopped
    left = False
    try:
        await turn
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        if session.stopped is before and not left:
            session.working -= 1


def _session_id(request: Request) -> str:
    session_id = request.headers.get(SESSION_HEADER, "")
    if not _SESSION_ID.fullmatch(session_id):
        raise Refused("ValidationException", "runtimeSessionId has 33 to 100 characters of [a-zA-Z0-9][a-zA-Z0-9-_]*.")
    return session_id
