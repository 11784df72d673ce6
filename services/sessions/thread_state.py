"""Native state as a runtime may see and write it (thread state; worker protocol, "Facades"; I28, I30).

Every call is checked against the token and the committed binding. A write is checked again right before it is stored; between that check and the
insert a run may lose its slot. Such a part is harmless: nothing shows it until a commit names it, a commit of that run is refused by
its own compare-and-set, and the part is collected.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from services.common.caller import Capability
from services.common.clock import Clock
from services.common.errors import HarnessError, Reason
from services.sessions.binding import BindingDocument, HeadDocument
from services.sessions.bindings import Bindings
from services.sessions.parts import (
    CHUNK_BYTES,
    MAX_PARTS_OF_RUN,
    check_same_part,
    content_digest,
    part_ref_of,
    too_many,
)
from services.sessions.runtime_fence import Fence, check_fence, refuse_closing, stale_lease
from services.sessions.store import SessionStore
from services.sessions.transfers import Transfers

STATE_AUDIENCE: Final = "state"


@dataclass(frozen=True, slots=True)
class HeadPiece:
    """A piece of the committed state. Revision zero: there is none."""

    revision: int
    codec: str
    part_index: int
    chunk: bytes | memoryview


class ThreadState:
    """The facade's rules. `grace_milliseconds`: how long a part is left alone before anyone asks whether it is needed."""

    def __init__(
        self, store: SessionStore, bindings: Bindings, transfers: Transfers, clock: Clock, *, grace_milliseconds: int
    ) -> None:
        self._store = store
        self._bindings = bindings
        self._transfers = transfers
        self._clock = clock
        self._grace = grace_milliseconds

    async def load(self, capability: Capability, fence: Fence) -> AsyncGenerator[HeadPiece, None]:
        """The parts of the committed head, in order; one empty piece when there is none."""
        head = (await self.admitted(capability, fence))["head"]
        # I30: what is committed, and nothing else: no pending part, none of another run or epoch.
        if head is None or not head["part_refs"]:
            yield HeadPiece(0 if head is None else head["revision"], "" if head is None else head["codec"], 0, b"")
            return
        with self._transfers.one(fence.binding_id):
            for index, part_ref in enumerate(head["part_refs"]):
                content = memoryview(await self._content(fence, head, part_ref))
                for start in range(0, max(len(content), 1), CHUNK_BYTES):
                    yield HeadPiece(head["revision"], head["codec"], index, content[start : start + CHUNK_BYTES])

    def transfer_of(self, fence: Fence):
        """Counts the part that is being received while the context lasts; `capacity` when there are too many."""
        return self._transfers.one(fence.binding_id)

    async def admit(self, capability: Capability, fence: Fence) -> None:
        """Returns if the call may write; `STALE_LEASE` otherwise."""
        await self.admitted(capability, fence)

    async def write(
        self, capability: Capability, fence: Fence, codec: str, idempotency_key: str, content: bytes
    ) -> str:
        """Stores one part and returns its reference; the same key returns the same reference."""
        part_ref = part_ref_of(fence.binding_id, fence.run_id, idempotency_key)
        digest = content_digest(content)
        for _ in range(MAX_PARTS_OF_RUN + 1):
            # Checked at write time again: receiving the content may have taken a while (I5, I10, I12).
            await self.admitted(capability, fence)
            known = await self._store.part(part_ref)
            if known is not None:
                check_same_part(known, codec, digest)
                return part_ref
            count = await self._store.count_parts(fence.binding_id, fence.run_id, MAX_PARTS_OF_RUN)
            if count >= MAX_PARTS_OF_RUN:
                raise too_many()
            stored = await self._store.insert_part(
                part_ref,
                {
                    "binding_id": fence.binding_id,
                    "run_id": fence.run_id,
                    # I35: the ordinal is unique within the run, so that raced writes cannot pass the bound together.
                    "ordinal": count + 1,
                    "codec": codec,
                    "digest": digest,
                    "size": len(content),
                    "check_at": int(self._clock.wall() * 1000) + self._grace,
                },
                content,
            )
            if stored:
                return part_ref
        raise HarnessError(
            Reason.UNAVAILABLE, "Other writes of the run were faster each time: try again.", retry_after=0.1
        )

    async def mark_uncertain(self, capability: Capability, fence: Fence) -> bool:
        """See `head.mark_uncertain`."""
        _check_capability(capability, fence)
        try:
            return await self._bindings.mark_uncertain(fence)
        except HarnessError as error:
            # A worker learns nothing about bindings other than its own, not even that they are not there.
            raise stale_lease() if error.reason is Reason.NOT_FOUND else error from None

    async def admitted(self, capability: Capability, fence: Fence) -> BindingDocument:
        """The binding, if token and fence are those of its run now; `STALE_LEASE` otherwise."""
        _check_capability(capability, fence)
        found = await self._store.binding_by_id(fence.binding_id)
        document = None if found is None else found[1]
        check_fence(document, fence)
        if document is None:
            raise stale_lease()
        refuse_closing(document)
        return document

    async def _content(self, fence: Fence, head: HeadDocument, part_ref: str) -> bytes:
        content = await self._store.part_content(part_ref)
        if content is not None:
            return content
        found = await self._store.binding_by_id(fence.binding_id)
        current = None if found is None else found[1]["head"]
        if current is None or current["revision"] != head["revision"]:
            raise stale_lease()
        raise HarnessError(Reason.PERSISTENCE_FAILED, "A part of the committed state is missing in the store.")


def _check_capability(capability: Capability, fence: Fence) -> None:
    """I28: a token (its audience was checked when it was verified) opens its own binding, epoch, runtime generation and run."""
    if (
        capability.binding_id != fence.binding_id
        or capability.epoch != fence.epoch
        or capability.runtime_generation != fence.runtime_generation
        or capability.run_id != fence.run_id
    ):
        raise stale_lease()
