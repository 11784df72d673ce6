"""Sessions of the data plane: what was said in each, what is still to be played, and whether its agent works."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.standins.agentcore.script import Step


@dataclass
class Session:
    """One `runtimeSessionId` of one harness or runtime."""

    heard: list[str] = field(default_factory=list)
    rest: list[Step] | None = None
    """The steps after a stop for inline functions; None: nothing waits for results."""
    asked: tuple[str, ...] = ()
    """The calls whose results are waited for."""
    results: list[dict[str, Any]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    working: int = 0
    """Invocations whose agent works: a disconnect alone ends none of them."""
    stops: int = 0


class Sessions:
    """All sessions, by resource and id."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Session] = {}

    def of(self, resource: str, session_id: str) -> Session:
        """The session; made when it is first asked for."""
        return self.known.setdefault((resource, session_id), Session())

    def stop(self, session_id: str) -> bool:
        """Ends whatever works in sessions of this id. False: there is none."""
        found = [session for (_, known), session in self.known.items() if known == session_id]
        for session in found:
            session.stopped.set()
            session.stopped = asyncio.Event()
            session.working, session.stops, session.rest = 0, session.stops + 1, None
        return bool(found)
