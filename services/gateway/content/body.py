"""The body of an upload as the messages of a call: one piece is asked for when the one before was taken (I14, I35)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from google.protobuf.message import Message

from services.common.errors import HarnessError, Reason
from services.gateway.envelope import Refused
from services.gateway.requests import ClientGone

MAX_CHUNK_BYTES: Final = 1 << 20
Receive = Callable[[], Awaitable[Any]]


class Body:
    """`first` says what the file is; `piece` makes the messages after it. At most two pieces are in memory."""

    def __init__(
        self, receive: Receive, first: Message, *, max_bytes: int, seconds: float, seconds_of_a_piece: float
    ) -> None:
        self._receive = receive
        self._first = first
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._seconds_of_a_piece = seconds_of_a_piece
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(1)

    async def read(self) -> None:
        """Returns when the whole body was handed on. 413 as soon as it is too large, 408 when it does not come in time, `ClientGone` when it broke off."""
        await self._messages.put(self._first)
        size, more = 0, True
        try:
            async with asyncio.timeout(self._seconds):
                while more:
                    message = await self._next()
                    piece, more = message["body"], message["more_body"]
                    size += len(piece)
                    if size > self._max_bytes:
                        raise too_large(self._max_bytes)
                    await self._hand_on(piece, last=not more)
                await self._messages.put(None)
        except TimeoutError:
            raise Refused(408, f"The file did not arrive within {self._seconds:g} seconds.") from None

    async def messages(self) -> AsyncGenerator[Message]:
        """What the call sends; ends without a `complete` one when the body does."""
        while (message := await self._messages.get()) is not None:
            yield message

    def end(self) -> None:
        """No more messages, whatever is still there: whoever waits for one goes on."""
        while not self._messages.empty():
            self._messages.get_nowait()
        self._messages.put_nowait(None)

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout(self._seconds_of_a_piece):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, f"Nothing of the file came for {self._seconds_of_a_piece:g} seconds.") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    async def _hand_on(self, piece: bytes, *, last: bool) -> None:
        for start in range(0, len(piece) or 1, MAX_CHUNK_BYTES):
            message: Any = type(self._first)(chunk=piece[start : start + MAX_CHUNK_BYTES])
            message.complete = last and start + MAX_CHUNK_BYTES >= len(piece)
            await self._messages.put(message)


def too_large(max_bytes: int) -> HarnessError:
    return HarnessError(
        Reason.BODY_TOO_LARGE,
        f"A file has at most {max_bytes} bytes: send a smaller one, or its content as several files.",
    )
