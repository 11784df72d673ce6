"""The program's transcript as thread state: lines that are appended to the committed head, and read back from it (thread state).

The parts, one behind the other, are lines of JSON. `{"of": subpath, "entry": {…}}` is one line of a transcript, the conversation's own under the empty
subpath, a subagent's under its own. `{"pause": {…}}` is what the conversation waits for, `{"pause": null}` that it waits no more; `{"results": {…}}`
what calls came to that had waited.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from adapters.sdk.contract import Turn
from adapters.sdk.errors import PersistenceError
from adapters.sdk.thread_state import MAX_HEAD_BYTES, MAX_PART_BYTES, MAX_PARTS

CODEC = "claude-transcript.v1"
TOO_LARGE = "state_too_large"
PART_BYTES = 1024 * 1024
MAX_RUN_BYTES = MAX_PARTS * PART_BYTES // 2
"""What one run may leave behind."""
MAX_SUBPATH_CHARACTERS = 512
# Kinds of lines that mean something here; all others are the program's own affair.
PUT_OFF = "hook_deferred_tool"
ENVIRONMENT = "environment"
MANY_PARTS = 512
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
    # The head as it stands.
    parts: tuple[bytes, ...] = field(default=(), repr=False)


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
    # I23: a long conversation is a second's work, in which no other turn of the host would move.
    return await asyncio.to_thread(_read, head.parts)


def _read(parts: tuple[bytes, ...]) -> Transcript:
    transcript = Transcript(parts=parts)
    try:
        for line in _joined(parts).splitlines():
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


def _joined(parts: Iterable[bytes]) -> bytes:
    # Parts are cut anywhere, also within a line.
    return b"".join(parts)


class TurnStore:
    """The SDK's session store for one turn: keeps what the turn adds until its end.

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

    async def load(self, _: Mapping[str, Any]) -> list[Entry] | None:
        """Nothing: the program finds the conversation in its own folder, where the runtime has laid it down."""
        return None

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

    def committed(self) -> dict[str, list[Entry]]:
        """The lines of each transcript as committed, by subpath, with the results of calls that had waited in their places."""
        return {
            subpath: _put_off_last([self._presented(entry) for entry in entries])
            for subpath, entries in self._transcript.entries.items()
        }

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
        added = b"".join(line + b"\n" for line in self._lines)
        if sum(len(part) for part in self._transcript.parts) + len(added) > MAX_HEAD_BYTES:
            # I35: kept, it could never be loaded again, and the conversation with it.
            raise PersistenceError(
                "The conversation has grown too large for this turn: say less, without files, or clear it.",
                code=TOO_LARGE,
            )
        # I35: a head has a bound of parts; one of many short turns is put together into few.
        anew = len(self._transcript.parts) >= MANY_PARTS
        stream, size = (_joined((*self._transcript.parts, added)), MAX_PART_BYTES) if anew else (added, PART_BYTES)
        for start in range(0, len(stream), size):
            part, key = stream[start : start + size], f"transcript-{start}"
            await self._turn.thread.write_part(part, CODEC, key=key, replace=anew)
        self._lines.clear()

    def _add(self, line: Entry) -> None:
        data = orjson.dumps(line)
        self._bytes += len(data) + 1
        if self._bytes > MAX_RUN_BYTES:
            self.failure = PersistenceError(
                "The turn leaves more behind than a conversation may keep of one turn.", code=TOO_LARGE
            )
            raise self.failure
        self._lines.append(data)

    def _presented(self, entry: Entry) -> Entry:
        entry = self._with_results(entry) if self._transcript.results else entry
        kind, recorded = _attachment(entry), entry.get("cwd")
        if kind == PUT_OFF and self._settled and entry["attachment"].get("toolUseID") == self._settled:
            return self._answered(entry)
        if kind == ENVIRONMENT and isinstance(recorded, str) and recorded != self._workspace:
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

    def _with_result(self, block: Any) -> Any:
        given: Entry = cast("Entry", block) if isinstance(block, dict) else {}
        if given.get("type") != "tool_result":
            return cast("Any", block)
        # I24: the placeholder of a call that waited makes room for what the call came to.
        result = self._transcript.results.get(str(given.get("tool_use_id")))
        return given if result is None else {**given, **result}


def _put_off_last(entries: list[Entry]) -> list[Entry]:
    """The lines with the one that puts a call off behind those of the other calls of its message: the program goes on with it only from there."""
    place = next((n for n in range(len(entries) - 1, -1, -1) if _attachment(entries[n]) == PUT_OFF), None)
    if place is None or any(_speaks(entry) for entry in entries[place + 1 :]):
        return entries
    last = next((entry for entry in reversed(entries) if "uuid" in entry), entries[place])
    if last is entries[place]:
        return entries
    return [*entries[:place], *entries[place + 1 :], {**entries[place], "parentUuid": last["uuid"]}]


def _speaks(entry: Entry) -> bool:
    """Whether the model said something here."""
    return entry.get("type") == "assistant"


def _attachment(entry: Entry) -> str:
    return str(cast("Entry", entry.get("attachment") or {}).get("type") or "")
