"""The program's transcript as thread state: lines that are appended to the committed head, and read back from it (thread state).

A part is lines of JSON. `{"of": subpath, "entry": {…}}` is one line of a transcript, the conversation's own under the empty subpath, a subagent's under its
own. `{"pause": {…}}` is what the conversation waits for, `{"pause": null}` that it waits no more; `{"results": {…}}` what calls came to that had waited.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from adapters.sdk.contract import Turn
from adapters.sdk.errors import PersistenceError
from adapters.sdk.thread_state import MAX_PART_BYTES, MAX_PARTS

CODEC = "claude-transcript.v1"
# What one run may leave behind; the last part is kept for what it waits for.
PART_BYTES = 1024 * 1024
MAX_RUN_BYTES = (MAX_PARTS - 2) * PART_BYTES
MAX_SUBPATH_CHARACTERS = 512
Entry = dict[str, Any]


@dataclass(slots=True)
class Transcript:
    """What the committed head says of a conversation."""

    session_id: str = ""
    # Entries by subpath; the conversation's own under the empty one.
    entries: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]], repr=False)
    # Results, by call, of calls that had waited.
    results: dict[str, Entry] = field(default_factory=dict[str, Entry], repr=False)
    pause: Entry | None = field(default=None, repr=False)


async def load(turn: Turn) -> Transcript:
    """The conversation as it was committed; empty without a head. Raises PersistenceError for a head that is damaged or not this harness's (I30)."""
    if turn.thread_revision == 0:
        return Transcript()
    head = await turn.thread.load_head()
    if head is None:
        raise PersistenceError("The conversation's state is missing.", code="state_missing")
    if not head.parts:
        return Transcript()
    if head.codec != CODEC:
        raise PersistenceError("The conversation's state has another encoding.", code="state_codec")
    transcript = Transcript()
    try:
        for part in head.parts:
            for line in part.splitlines():
                _take(transcript, orjson.loads(line))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise PersistenceError("The conversation's state is damaged.", code="state_damaged") from None
    return transcript


def _take(transcript: Transcript, line: Entry) -> None:
    if "entry" in line:
        entry = cast("Entry", line["entry"])
        transcript.entries.setdefault(str(line["of"]), []).append(entry)
        if not line["of"]:
            transcript.session_id = str(entry.get("sessionId") or transcript.session_id)
    elif "results" in line:
        transcript.results.update(cast("dict[str, Entry]", line["results"]).items())
    else:
        transcript.pause = None if line["pause"] is None else {**line["pause"]}


class TurnStore:
    """The SDK's session store for one turn: gives the SDK what was committed, and keeps what the turn adds until its end.

    It is written at the turn's end alone: what a turn adds counts only if the turn ends well, and a part for each of many small writes would not fit.
    """

    def __init__(self, turn: Turn, transcript: Transcript, workspace: str) -> None:
        self._turn = turn
        self._transcript = transcript
        self._workspace = workspace
        self._lines: list[bytes] = []
        self._bytes = 0
        self._seen: set[str] = set()
        # The call that was put off and is not to be made any more.
        self._settled = ""
        # The first thing that could not be kept: from then on the turn's state is not whole.
        self.failure: PersistenceError | None = None

    # --- what the SDK calls ---

    async def append(self, key: Mapping[str, Any], entries: Sequence[Entry]) -> None:
        """Takes lines of a transcript. A line that was taken before is left out. Raises PersistenceError past the bound of a run."""
        subpath = str(key.get("subpath") or "")
        if self.failure is not None:
            raise self.failure
        for entry in entries:
            unique = entry.get("uuid")
            if isinstance(unique, str):
                if unique in self._seen:
                    continue
                self._seen.add(unique)
            self._add({"of": subpath[:MAX_SUBPATH_CHARACTERS], "entry": entry})

    async def load(self, key: Mapping[str, Any]) -> list[Entry] | None:
        """The lines of one transcript as committed, with the results of calls that had waited in their places; None: there is none."""
        entries = self._transcript.entries.get(str(key.get("subpath") or ""))
        return [self._presented(entry) for entry in entries] if entries else None

    async def list_subkeys(self, key: Mapping[str, Any]) -> list[str]:
        """The subpaths that have lines."""
        return [subpath for subpath in self._transcript.entries if subpath]

    # --- what the runtime calls ---

    def add_results(self, results: Mapping[str, Entry]) -> None:
        """Keeps what calls came to that had waited: each stands in its call's place from now on, also in this turn."""
        if results:
            self._transcript.results.update(results)
            self._add({"results": dict(results)})

    def add_pause(self, pause: Entry | None) -> None:
        """Keeps what the conversation waits for, or that it waits no more."""
        if pause is not None or self._transcript.pause is not None:
            self._add({"pause": pause})

    def settle(self, put_off: str) -> None:
        """The call that the program had put off has its result already, and is not made when it goes on."""
        self._settled = put_off

    def kept(self) -> Transcript:
        """What was known and what the turn added, for a conversation without thread state."""
        for line in self._lines:
            _take(self._transcript, orjson.loads(line))
        return self._transcript

    async def write(self) -> None:
        """Writes what the turn adds, for the executor to commit. Raises PersistenceError, also for what could not be kept earlier."""
        if self.failure is not None:
            raise self.failure
        for number, part in enumerate(self._parts()):
            await self._turn.thread.write_part(part, CODEC, key=f"transcript-{number}")
        self._lines.clear()

    def _add(self, line: Entry) -> None:
        data = orjson.dumps(line)
        self._bytes += len(data) + 1
        if self._bytes > MAX_RUN_BYTES or len(data) >= MAX_PART_BYTES:
            self.failure = PersistenceError(
                "The turn leaves more behind than a conversation may keep of one turn.", code="state_too_large"
            )
            raise self.failure
        self._lines.append(data)

    def _parts(self) -> Iterator[bytes]:
        """The lines in few parts: I35, a run may write 64."""
        part: list[bytes] = []
        size = 0
        for line in self._lines:
            if part and size + len(line) + 1 > PART_BYTES:
                yield b"\n".join(part)
                part, size = [], 0
            part.append(line)
            size += len(line) + 1
        if part:
            yield b"\n".join(part)

    def _presented(self, entry: Entry) -> Entry:
        entry = self._with_results(entry) if self._transcript.results else entry
        attachment = cast("Entry", entry.get("attachment") or {})
        if (
            self._settled
            and attachment.get("toolUseID") == self._settled
            and attachment.get("type") == "hook_deferred_tool"
        ):
            return self._answered(entry)
        recorded = entry.get("cwd")
        if attachment.get("type") == "environment" and isinstance(recorded, str) and recorded != self._workspace:
            # Where the workspace is differs from host to host; the model is told of one place.
            moved = orjson.dumps(entry).replace(orjson.dumps(recorded)[1:-1], orjson.dumps(self._workspace)[1:-1])
            return orjson.loads(moved)
        return entry

    def _with_results(self, entry: Entry) -> Entry:
        message = cast("Entry", entry.get("message") or {})
        content = message.get("content")
        if entry.get("type") != "user" or not isinstance(content, list):
            return entry
        blocks = [self._with_result(block) for block in cast("list[Any]", content)]
        if blocks == content:
            return entry
        return {**entry, "message": {**message, "content": blocks}, "toolUseResult": None}

    def _answered(self, entry: Entry) -> Entry:
        """The line that a call is put off, as the line that it was answered."""
        block = {"type": "tool_result", "tool_use_id": self._settled, **self._transcript.results[self._settled]}
        kept = {name: value for name, value in entry.items() if name != "attachment"}
        return {**kept, "type": "user", "message": {"role": "user", "content": [block]}}

    def _with_result(self, block: object) -> object:
        given = cast("Entry", block) if isinstance(block, dict) else {}
        if given.get("type") != "tool_result":
            return block
        # I24: the placeholder of a call that waited makes room for what the call came to.
        result = self._transcript.results.get(str(given.get("tool_use_id")))
        return given if result is None else {**given, **result}
