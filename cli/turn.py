"""Starting a turn and watching a run, so that neither a broken connection nor Ctrl-C leaves a person in doubt."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cli.api import Api, Broken, unreachable
from cli.documents import read_bytes, read_text
from cli.errors import CommandError, ExitCode, usage_error
from cli.feed import RunFeed
from cli.output import Output
from cli.run_view import EXIT_CODES, run_view
from cli.upload import LocalFile, local_file, upload

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_CONTEXT_CHARACTERS: Final = 500_000
MAX_FILES: Final = 32
START_ATTEMPTS: Final = 3
_STDIN: Final = "-"


@dataclass(slots=True)
class Watch:
    """Watching one run from a cursor on."""

    run_id: str
    cursor: int = 0
    reached: bool = False
    rejections: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why calls were rejected with which the run goes on, by call."""

    async def follow(self, api: Api, output: Output) -> int:
        """Shows every event once, over as many connections as it takes. The exit code says how the run ended."""
        view = run_view(output, self.rejections)

        def broken(reason: str, cursor: int) -> None:
            view.pause()
            output.note(f"connection lost ({reason}); resuming after event {cursor}")

        feed = RunFeed(api, self.run_id, self.cursor, reached=self.reached, on_break=broken)
        last = ""
        try:
            async with contextlib.aclosing(feed.events()) as events:
                async for event in events:
                    view.show(event)
                    self.cursor, last = event.sequence, event.event_type
        finally:
            view.pause()
        if last not in EXIT_CODES:
            # Nothing was left to show.
            run = await api.get(f"/api/v1/runs/{self.run_id}")
            last = f"run.{run['status']}"
            output.note(f"{self.run_id}: {run['status']}, no event after {self.cursor}")
        if EXIT_CODES[last] is ExitCode.WAITING:
            output.note(f"Decide with `harness runs resume {self.run_id}`.")
        return int(EXIT_CODES[last])

    def interrupted(self) -> CommandError:
        """What Ctrl-C left behind."""
        return CommandError(
            f"Stopped watching; run {self.run_id} goes on.",
            ExitCode.INTERRUPTED,
            "interrupted",
            f"Watch it again with `harness runs watch {self.run_id} --after {self.cursor}`, cancel it with "
            f"`harness runs cancel {self.run_id}`.",
            facts={"run_id": self.run_id, "last_sequence": self.cursor},
        )


@dataclass(slots=True)
class Turn:
    """One turn to start. Its request id is chosen here if not given, so that a start whose answer is lost can be repeated."""

    request: dict[str, Any]
    names_conversation: bool
    files: Sequence[LocalFile] = ()
    """What is uploaded before it starts."""
    names_request: bool = False
    starting: bool = False
    watch: Watch | None = field(default=None)

    @classmethod
    def create(
        cls,
        agent_id: str,
        message: str,
        conversation_id: str | None,
        context: str | None,
        on_conflict: str,
        request_id: str | None,
        files: Sequence[str] = (),
        file_ids: Sequence[str] = (),
    ) -> Turn:
        """The turn as the command line describes it. Raises CommandError (exit 2)."""
        if message == _STDIN and context == _STDIN:
            raise usage_error("MESSAGE and --context cannot both be standard input.", "Put one of them in a file.")
        request: dict[str, Any] = {
            "agent_id": agent_id,
            "conversation_id": conversation_id or f"cli-{secrets.token_hex(8)}",
            "message": _message(message),
            "client_request_id": request_id or f"cli-{secrets.token_hex(16)}",
            "on_conflict": on_conflict,
        }
        if context is not None:
            request["context"] = read_text(context, MAX_CONTEXT_CHARACTERS)
        if len(files) + len(file_ids) > MAX_FILES:
            raise usage_error(f"A turn takes at most {MAX_FILES} files.", "Send the others with the next turn.")
        if file_ids:
            request["files"] = list(file_ids)
        if _STDIN in files:
            raise usage_error(
                "--file takes no standard input.",
                "Upload it with `harness files upload -`, and give its id as --file-id.",
            )
        local = [local_file(path) for path in files]
        named = conversation_id is not None
        return cls(request, names_conversation=named, files=local, names_request=request_id is not None)

    def interrupted(self) -> CommandError:
        """What Ctrl-C left behind."""
        if self.watch is not None:
            return self.watch.interrupted()
        request = self.request
        if not self.starting:
            return CommandError("Interrupted before a run was started.", ExitCode.INTERRUPTED, "interrupted")
        return CommandError(
            "Interrupted before the mesh had answered: the run may have been started.",
            ExitCode.INTERRUPTED,
            "interrupted",
            f"Find out with `harness runs list --agent {request['agent_id']} --conversation {request['conversation_id']}`.",
            facts={"conversation_id": request["conversation_id"], "client_request_id": request["client_request_id"]},
        )


async def start_and_watch(api: Api, output: Output, turn: Turn, *, detach: bool = False) -> int:
    """Starts the turn; unless detached, watches it to its end and returns the exit code for how it ended."""
    uploaded = await _attach(api, output, turn)
    turn.starting = True
    try:
        run = await _start(api, turn)
    except CommandError as error:
        # A start that is refused leaves nothing behind. Under a request id of the caller's, an earlier start may name the same files.
        if error.exit_code is not ExitCode.UNREACHABLE and not turn.names_request:
            for file_id in uploaded:
                await api.delete(f"/api/v1/files/{file_id}")
        raise
    turn.watch = Watch(run["run_id"], reached=True)
    return await started(output, turn.watch, run, api, detach=detach, names_conversation=turn.names_conversation)


async def started(
    output: Output,
    watch: Watch,
    run: dict[str, Any],
    api: Api,
    *,
    detach: bool,
    names_conversation: bool = True,
) -> int:
    """Says which run was started; unless detached, watches it to its end and returns the exit code for how it ended."""
    run_id, conversation = run["run_id"], run["conversation_id"]
    if detach:
        if output.as_json:
            output.document(run)
        else:
            output.say(f"run {run_id} of conversation {conversation}: {run['status']}")
            output.note(f"Watch it with `harness runs watch {run_id}`.")
        return 0
    chosen = "" if names_conversation else " (go on with it by --conversation)"
    output.note(f"run {run_id} · conversation {conversation}{chosen}")
    return await watch.follow(api, output)


async def _attach(api: Api, output: Output, turn: Turn) -> list[str]:
    """Uploads the turn's files; their ids."""
    uploaded: list[str] = []
    for number, file in enumerate(turn.files):
        # I3: the same start again names the same files.
        key = f"{turn.request['client_request_id']}/{number}".encode()
        known = await upload(api, output, file, f"cli-{hashlib.sha256(key).hexdigest()[:40]}")
        uploaded.append(known["file_id"])
    if uploaded:
        turn.request["files"] = [*uploaded, *turn.request.get("files", ())]
    return uploaded


async def _start(api: Api, turn: Turn) -> dict[str, Any]:
    attempt = 1
    while True:
        try:
            return await api.post("/api/v1/runs", turn.request)
        except Broken as broken:
            # I3: the request id makes a repeated start the same run.
            if attempt == START_ATTEMPTS:
                raise unreachable(api.connection.url, broken.reason) from None
        attempt += 1


def _message(text: str) -> str:
    if text == _STDIN:
        data = read_bytes(_STDIN, MAX_MESSAGE_BYTES)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise usage_error("MESSAGE is not UTF-8 text.", "Give it as UTF-8.") from None
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise usage_error("MESSAGE is not UTF-8 text.", "Give it as UTF-8.") from None
    if not 0 < size <= MAX_MESSAGE_BYTES:
        raise usage_error(f"MESSAGE has {size:,} bytes.", f"Give 1 to {MAX_MESSAGE_BYTES:,} bytes of text.")
    return text
