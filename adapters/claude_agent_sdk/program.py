"""One program for one turn: the SDK's CLI, started, asked, interrupted, and gone at the end (design 0005)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ClaudeSDKError, Message

from adapters.claude_agent_sdk.errors import program_failed
from adapters.claude_agent_sdk.home import TurnFolder
from adapters.claude_agent_sdk.processes import end_tree, is_alive
from adapters.sdk.errors import UnavailableError
from adapters.sdk.logs import describe, get_logger

START_SECONDS = 60.0
"""How long the program may take to be ready; on a busy machine it needs several seconds."""
INTERRUPT_SECONDS = 0.2
LEAVE_SECONDS = 2.0
_KILLED_SECONDS = 1.5
_LOOK_SECONDS = 0.02
_log = get_logger(__name__)


def bundled_program() -> Path:
    """The program that comes with the SDK. Raises UnavailableError if this installation has none."""
    path = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    if not path.is_file():
        raise UnavailableError(
            "The Claude Agent SDK was installed without its program: install the package for this platform.",
            code="program_missing",
            retryable=False,
        )
    return path


class Program:
    """The program of one turn. `stop` may be called at any moment, and more than once."""

    def __init__(self, options: ClaudeAgentOptions, folder: TurnFolder) -> None:
        self._client = ClaudeSDKClient(options)
        self._folder = folder
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._ready = False

    async def start(self, content: str | Sequence[dict[str, Any]] | None) -> None:
        """Starts it and says the person's message; None: it goes on with the call it had put off. Raises UnavailableError if it does not start."""
        self._starting = asyncio.get_running_loop().create_task(self._start(content))
        await asyncio.shield(self._starting)

    async def _start(self, content: str | Sequence[dict[str, Any]] | None) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._client.connect()
                self._ready = True
                if content is not None:
                    await self._client.query(_said(content))
        except (ClaudeSDKError, TimeoutError, RuntimeError, OSError) as error:
            raise program_failed(error, started=self._ready) from error

    async def messages(self) -> AsyncIterator[Message]:
        """What it says, to the end of the turn. Raises UnavailableError if it dies."""
        try:
            async for message in self._client.receive_response():
                yield message
        except ClaudeSDKError as error:
            raise program_failed(error, started=True) from error

    async def interrupt(self) -> None:
        """Asks it to stop what it does, its tools too. Returns within 0.2 seconds, whether it does or not."""
        if not self._ready or self._stopping is not None:
            return
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await self._client.interrupt()
        except Exception as error:  # noqa: BLE001 - it is stopped all the same; that it could not be asked is for the log
            _log.info("program_not_interrupted", error=describe(error))

    def stop(self, *, hurry: bool = False, then: "Callable[[Program], None] | None" = None) -> "asyncio.Future[None]":
        """Ends it: by closing its input and, if it does not go, by force; in a `hurry` by force at once. Then its folder goes, and `then` is told.
        Idempotent. It goes on whether or not what is returned is awaited to its end (I20).
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(hurry=hurry))
            if then is not None:
                self._stopping.add_done_callback(lambda _: then(self))
        return asyncio.shield(self._stopping)

    async def _stop(self, *, hurry: bool) -> None:
        if hurry:
            # Nothing of the turn is kept, and a program that is left a moment may ask its model again.
            self._kill()
        starting = self._starting
        if starting is not None and not starting.done():
            # Still on its way up: there is nobody to say goodbye to.
            starting.cancel()
            await self._killed(starting)
        leaving = asyncio.get_running_loop().create_task(self._client.disconnect())
        await asyncio.wait({leaving}, timeout=LEAVE_SECONDS)
        if not leaving.done():
            await self._killed(leaving)
        self._kill()
        if not leaving.done():
            leaving.cancel()
            _log.error("program_not_left")
        elif (error := leaving.exception()) is not None:
            _log.warning("program_left_badly", error=describe(error))
        try:
            await asyncio.to_thread(self._folder.remove)
        except (OSError, RecursionError) as error:
            # The turn has an end of its own. The runtime's folder, which this one is in, goes with the runtime.
            _log.warning("turn_folder_not_removed", error=describe(error))

    async def _killed(self, task: "asyncio.Task[None]") -> None:
        """Kills the program until the task that waits for its end is done. One that was only just started has no process id to be killed by yet."""
        for _ in range(round(_KILLED_SECONDS / _LOOK_SECONDS)):
            self._kill()
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if task.done():
                return

    def _kill(self) -> None:
        pid = self._folder.pid()
        if pid and is_alive(pid):
            _log.info("program_killed", pid=pid)
            end_tree(pid)


async def _messages(content: Sequence[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "user", "message": {"role": "user", "content": list(content)}, "parent_tool_use_id": None}


def _said(content: str | Sequence[dict[str, Any]]) -> str | AsyncIterator[dict[str, Any]]:
    return content if isinstance(content, str) else _messages(content)
