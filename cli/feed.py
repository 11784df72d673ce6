"""Following one run: every event once and in order, over as many connections as it takes (REST API; I7, I14)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cli.api import Api, Broken, segment, unreachable
from cli.errors import CommandError, ExitCode
from cli.sse import EventStreamParser, Frame, FrameTooLarge

PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0)
"""Seconds before each new connection; when they are used up without a new event, following ends."""
TERMINALS: Final = frozenset({"run.completed", "run.interrupted", "run.cancelled", "run.failed"})
ENDED: Final = frozenset({"completed", "interrupted", "cancelled", "failed"})
MAX_SEQUENCE: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run, as REST shows it."""

    run_id: str
    sequence: int
    event_type: str
    data: dict[str, Any]


class RunFeed:
    """The events of a run after `cursor`, which is always the last sequence that was given out.

    `reached`: the mesh answered already, so a refused connection is an interruption and not the end.
    """

    def __init__(
        self,
        api: Api,
        run_id: str,
        cursor: int = 0,
        *,
        reached: bool = False,
        on_break: Callable[[str, int], None] = lambda reason, cursor: None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self.run_id = run_id
        self.cursor = cursor
        self._api = api
        self._path = f"/api/v1/runs/{segment(run_id)}"
        self._reached = reached
        self._on_break = on_break
        self._pauses = pauses

    async def events(self) -> AsyncGenerator[RunEvent]:
        """Ends after the terminal, or when the run has ended and there is nothing after the cursor. Raises CommandError."""
        failures = 0
        while True:
            retry_after = 0.0
            try:
                async with contextlib.aclosing(self._connection()) as events:
                    async for event in events:
                        failures = 0
                        yield event
                        if event.event_type in TERMINALS:
                            return
                if await self._is_over():
                    return
                reason = "the stream ended before the run did"
            except Broken as broken:
                if broken.unconnected and not self._reached:
                    raise unreachable(self._api.connection.url, broken.reason) from None
                reason, retry_after = broken.reason, broken.retry_after
            self._reached = True
            if failures == len(self._pauses):
                raise self._given_up(reason)
            self._on_break(reason, self.cursor)
            await asyncio.sleep(max(self._pauses[failures], retry_after))
            failures += 1

    async def _connection(self) -> AsyncGenerator[RunEvent]:
        parameters = {"after": self.cursor} if self.cursor else {}
        async with self._api.stream(f"{self._path}/events/stream", parameters, self.cursor) as chunks:
            parser = EventStreamParser()
            async for chunk in chunks:
                for frame in _frames(parser, chunk):
                    event = self._event(frame)
                    if event.sequence <= self.cursor:
                        # I7: shown already.
                        continue
                    if event.sequence != self.cursor + 1:
                        raise Broken(f"the stream left out what follows event {self.cursor}")
                    self.cursor = event.sequence
                    yield event

    def _event(self, frame: Frame) -> RunEvent:
        try:
            data = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            data = None
        is_sequence = frame.id.isascii() and frame.id.isdigit() and len(frame.id) <= 10
        if not is_sequence or not 0 < int(frame.id) <= MAX_SEQUENCE or not isinstance(data, dict):
            raise Broken("the stream holds something that is no event")
        return RunEvent(self.run_id, int(frame.id), frame.event, data)

    async def _is_over(self) -> bool:
        run = await self._api.get(self._path)
        return run["status"] in ENDED and run["last_sequence"] <= self.cursor

    def _given_up(self, reason: str) -> CommandError:
        return CommandError(
            f"The events of run {self.run_id} cannot be followed: {reason} ({len(self._pauses) + 1} attempts).",
            ExitCode.UNREACHABLE,
            "stream_broken",
            f"The run goes on. Watch it again with `harness runs watch {self.run_id} --after {self.cursor}`.",
            facts={"run_id": self.run_id, "last_sequence": self.cursor},
        )


def _frames(parser: EventStreamParser, chunk: bytes) -> list[Frame]:
    try:
        return parser.feed(chunk)
    except FrameTooLarge as error:
        raise Broken(str(error)) from None
