"""Every change of a binding is read → decide → compare-and-set, again if somebody else was faster (run protocol).

Correctness is the compare-and-set alone. Within a process those who change one conversation also stand in line, so that many
raced starts cost one write each and no storm of lost ones.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from services.common.clock import Clock
from services.common.errors import HarnessError, Reason, not_found
from services.common.ids import Identity
from services.sessions import epoch, head, interrupt, runtime_fence, turn
from services.sessions.binding import FIRST_EPOCH, BindingDocument, Conversation, RuntimeRefDocument, new_epoch
from services.sessions.bound_agents import is_bound
from services.sessions.part_collection import PartCollector
from services.sessions.parts import MAX_PARTS_OF_RUN
from services.sessions.recent import RecentBindings
from services.sessions.runtime_fence import Fence
from services.sessions.store import SessionStore

MAX_ATTEMPTS: Final = 64
"""Compare-and-sets of one change, lost to other processes, before it is answered `unavailable` (I35)."""
_LONGEST_PAUSE: Final = 0.05

T = TypeVar("T")
Decide = Callable[[BindingDocument], tuple[BindingDocument, T]]


class Bindings:
    """All that can be asked of bindings. `max_waiting` bounds the line of a conversation."""

    def __init__(
        self, store: SessionStore, identity: Identity, clock: Clock, collector: PartCollector, *, max_waiting: int
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._collector = collector
        self._max_waiting = max_waiting
        self._lines: dict[str, _Line] = {}
        self._recent = RecentBindings()

    async def find(self, subject: str, agent_id: str, conversation_id: str) -> BindingDocument:
        """The open epoch of the caller's conversation; `not_found` for everybody else's too (I2)."""
        found = await self._store.binding(self._key(self._conversation(subject, agent_id, conversation_id)))
        if found is None:
            raise not_found("binding")
        return found[1]

    async def get(self, binding_id: str) -> tuple[BindingDocument, bool]:
        """A binding by id, and whether it is archived; `not_found` if there is none."""
        found = await self._store.binding_by_id(binding_id)
        if found is not None:
            return found[1], False
        archived = await self._store.archived(binding_id)
        if archived is not None:
            return archived, True
        raise not_found("binding")

    async def bound_agents(self, harness_id: str, profile_id: str, agent_ids: Sequence[str]) -> list[str]:
        """Those of the agents that have an open binding with this harness and profile; see `bound_agents`."""
        return [agent_id for agent_id in agent_ids if await is_bound(self._store, agent_id, harness_id, profile_id)]

    async def reserve(
        self, subject: str, agent_id: str, conversation_id: str, asked: turn.Reservation
    ) -> tuple[BindingDocument, tuple[turn.Outcome, str]]:
        """See `turn.reserve`. A binding that is not there yet is made by the insert that gives its slot (I3)."""
        conversation = self._conversation(subject, agent_id, conversation_id)
        key = self._key(conversation)
        async with self._line(key):
            for attempt in range(MAX_ATTEMPTS):
                found = await self._store.binding(key)
                now = self._now()
                if found is None:
                    fresh = new_epoch(conversation, self._binding_id(conversation, FIRST_EPOCH), FIRST_EPOCH, 0)
                    changed, outcome = turn.reserve(fresh, asked, self._max_waiting, now)
                    # I3: the key is unique, so of all raced creations one is inserted.
                    kept = await self._store.insert_binding(key, changed)
                else:
                    document = found[1]
                    changed, outcome = turn.reserve(document, asked, self._max_waiting, now)
                    kept = document if changed is document else await self._replaced(key, document, changed)
                if kept is not None:
                    self._recent.keep(key, kept)
                    return kept, outcome
                await _pause(attempt)
        raise _too_contended()

    async def release(
        self, binding_id: str, run_id: str, *, stored: bool, issued: bool, interrupted: bool
    ) -> tuple[BindingDocument, bool]:
        """See `turn.release`; a closed epoch has nothing to give back."""
        return await self._change_or_archived(
            binding_id,
            lambda document: turn.release(
                document, run_id, stored=stored, issued=issued, interrupted=interrupted, now=self._now()
            ),
        )

    async def withdraw(self, binding_id: str, run_id: str) -> tuple[BindingDocument, bool]:
        """See `turn.withdraw`; nobody waits for a closed epoch."""
        return await self._change_or_archived(binding_id, lambda document: turn.withdraw(document, run_id, self._now()))

    async def claim(self, binding_id: str, run_id: str, run_generation: int) -> BindingDocument:
        """See `turn.claim`."""
        document, _ = await self._change_open(
            binding_id, lambda document: turn.claim(document, run_id, run_generation, self._now())
        )
        return document

    async def advance_runtime(self, fence: Fence) -> BindingDocument:
        """See `runtime_fence.advance_runtime`."""
        document, _ = await self._change_open(
            fence.binding_id, lambda document: runtime_fence.advance_runtime(document, fence, self._now())
        )
        return document

    async def record_runtime(self, fence: Fence, runtime_ref: RuntimeRefDocument) -> None:
        """See `runtime_fence.record_runtime`."""
        await self._change_open(
            fence.binding_id, lambda document: runtime_fence.record_runtime(document, fence, runtime_ref, self._now())
        )

    async def record_native_session(self, fence: Fence, native_session_id: str) -> int:
        """See `runtime_fence.record_native_session`."""
        _, revision = await self._change_open(
            fence.binding_id,
            lambda document: runtime_fence.record_native_session(document, fence, native_session_id, self._now()),
        )
        return revision

    async def commit_head(
        self,
        fence: Fence,
        pending: head.Pending | None,
        outcome: str,
        runtime_ref: RuntimeRefDocument | None = None,
        asked: interrupt.Asked | None = None,
    ) -> int:
        """See `head.commit`. What the run wrote is read first: a part never changes, and none of a run in the slot is deleted."""
        written: dict[str, str] = {}
        if pending is not None and pending.part_refs:
            written = await self._store.codecs_of_run(fence.binding_id, fence.run_id, MAX_PARTS_OF_RUN)
        _, revision = await self._change_open(
            fence.binding_id,
            lambda document: head.commit(document, fence, pending, written, outcome, self._now(), runtime_ref, asked),
        )
        return revision

    async def mark_uncertain(self, fence: Fence) -> bool:
        """See `head.mark_uncertain`."""
        _, already_committed = await self._change_open(
            fence.binding_id, lambda document: head.mark_uncertain(document, fence, self._now())
        )
        return already_committed

    async def begin_clear(
        self, subject: str, agent_id: str, conversation_id: str
    ) -> tuple[BindingDocument | None, bool]:
        """See `epoch.begin_clear`; without a binding there is nothing to clear."""
        key = self._key(self._conversation(subject, agent_id, conversation_id))
        found = await self._store.binding(key)
        if found is None:
            return None, False
        async with self._line(key):
            for attempt in range(MAX_ATTEMPTS):
                found = await self._store.binding(key)
                if found is None:
                    return None, False
                document = found[1]
                changed, closing = epoch.begin_clear(document, self._now())
                kept = document if changed is document else await self._replaced(key, document, changed)
                if kept is not None:
                    return kept, closing
                await _pause(attempt)
        raise _too_contended()

    async def finish_clear(self, binding_id: str) -> int:
        """Archives a closing epoch and opens the next; returns the number of that. Repeated or raced: the same answer (I5)."""
        for attempt in range(MAX_ATTEMPTS):
            found = await self._store.binding_by_id(binding_id)
            if found is None:
                break
            key, closing = found
            epoch.check_clear_can_finish(closing)
            # Archived first: after the compare-and-set nobody could find the closed epoch any more.
            await self._store.archive(closing)
            following = epoch.opened(closing, self._binding_id(_conversation_of(closing), closing["epoch"] + 1))
            # I5: the binding id changes with the epoch, so of all raced finishes one succeeds, and a late one finds the archive.
            if await self._replaced(key, closing, following) is not None:
                break
            await _pause(attempt)
        else:
            raise _too_contended()
        archived = await self._store.archived(binding_id)
        if archived is None:
            raise not_found("binding")
        self._collector.collect_soon(binding_id)
        return archived["epoch"] + 1

    async def unsettled(self, before: int, limit: int, after: str | None) -> tuple[list[BindingDocument], str | None]:
        """Bindings that may need help (run protocol, Sweep). `before` is Unix milliseconds."""
        return await self._store.unsettled(before, limit, after)

    async def _change_or_archived(self, binding_id: str, decide: Decide[bool]) -> tuple[BindingDocument, bool]:
        answer = await self._change(binding_id, decide)
        if answer is not None:
            return answer
        archived = await self._store.archived(binding_id)
        if archived is None:
            raise not_found("binding")
        return archived, False

    async def _change_open(self, binding_id: str, decide: Decide[T]) -> tuple[BindingDocument, T]:
        answer = await self._change(binding_id, decide)
        if answer is not None:
            return answer
        if await self._store.archived(binding_id) is None:
            raise not_found("binding")
        # I5: nothing of a closed epoch is accepted.
        raise runtime_fence.stale_lease()

    async def _change(self, binding_id: str, decide: Decide[T]) -> tuple[BindingDocument, T] | None:
        known = self._recent.take(binding_id)
        if known is not None:
            done = await self._change_known(*known, decide)
            if done is not None:
                return done
        found = await self._store.binding_by_id(binding_id)
        if found is None:
            return None
        key, document = found
        if key not in self._lines:
            changed, answer = decide(document)
            kept = document if changed is document else await self._replaced(key, document, changed)
            if kept is not None:
                return kept, answer
        async with self._line(key):
            for attempt in range(MAX_ATTEMPTS):
                found = await self._store.binding_by_id(binding_id)
                if found is None:
                    return None
                document = found[1]
                changed, answer = decide(document)
                kept = document if changed is document else await self._replaced(key, document, changed)
                if kept is not None:
                    return kept, answer
                await _pause(attempt)
        raise _too_contended()

    async def _change_known(
        self, key: str, document: BindingDocument, decide: Decide[T]
    ) -> tuple[BindingDocument, T] | None:
        """The change made without a read, or None where only a read can tell what to answer."""
        if key in self._lines:
            return None
        try:
            changed, answer = decide(document)
        except HarnessError:
            return None  # refused by what may be old
        # That there is nothing to write, too.
        kept = None if changed is document else await self._replaced(key, document, changed)
        return None if kept is None else (kept, answer)

    async def _replaced(self, key: str, before: BindingDocument, after: BindingDocument) -> BindingDocument | None:
        """Compare-and-set; the document as it is kept now, None when it was another already."""
        kept = await self._store.replace_binding(key, before, after)
        if kept is not None:
            self._recent.keep(key, kept)
        return kept

    @asynccontextmanager
    async def _line(self, key: str):
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.members += 1
        try:
            async with line.lock:
                yield
        finally:
            line.members -= 1
            if line.members == 0:
                del self._lines[key]

    def _conversation(self, subject: str, agent_id: str, conversation_id: str) -> Conversation:
        # I1: from here on the owner is a digest; the subject itself is kept nowhere.
        return {
            "owner_id": self._identity.owner_digest(subject),
            "agent_id": agent_id,
            "conversation_id": conversation_id,
        }

    def _key(self, conversation: Conversation) -> str:
        # I2: the owner is part of every lookup.
        return self._identity.conversation_key(
            conversation["owner_id"], conversation["agent_id"], conversation["conversation_id"]
        )

    def _binding_id(self, conversation: Conversation, number: int) -> str:
        return self._identity.binding_id(
            conversation["owner_id"], conversation["agent_id"], conversation["conversation_id"], number
        )

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)


class _Line:
    """Those of this process that change one conversation; there only while somebody is in it."""

    __slots__ = ("lock", "members")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.members = 0


def _conversation_of(document: BindingDocument) -> Conversation:
    return {
        "owner_id": document["owner_id"],
        "agent_id": document["agent_id"],
        "conversation_id": document["conversation_id"],
    }


async def _pause(attempt: int) -> None:
    # Somebody outside the line was faster, most likely another process; jitter keeps the two from losing to each other in step.
    await asyncio.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.001 * 2 ** min(attempt, 10))))  # noqa: S311 - no secret


def _too_contended() -> HarnessError:
    return HarnessError(
        Reason.UNAVAILABLE,
        f"The conversation changed {MAX_ATTEMPTS} times while this call tried to: try again.",
        retry_after=0.1,
    )
