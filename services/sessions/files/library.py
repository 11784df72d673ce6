"""A subject's files: uploading, looking, deleting, and keeping them for the runs that name them (I2, I35).

An upload writes its parts and then, in one insert, the file: half an upload is no file, and its parts are collected. A deletion takes the file first.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from services.common.clock import Clock
from services.common.errors import HarnessError, Reason, not_found
from services.common.ids import Identity, new_file_id, new_nonce
from services.common.store import MAX_PAGE
from services.common.tasks import BackgroundTasks
from services.sessions.files.file import (
    PART_BYTES,
    Allowance,
    FileDocument,
    check_same_file,
    check_whole,
    label,
)
from services.sessions.files.media import Allowed, ContentCheck
from services.sessions.files.store import FileStore, Known
from services.sessions.transfers import Transfers

KEEP_TRIES: Final = 16
"""Compare-and-sets of one expiry, lost to other runs, before it is answered `unavailable`."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What the head of an upload says. `size` zero: not known; `client_request_id` empty: not idempotent."""

    name: str
    media_type: str
    size: int
    client_request_id: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an upload; only a `complete` one may be the last."""

    chunk: bytes
    complete: bool


class Library:
    """`life_milliseconds` is how long a file is kept that no run names, `grace_milliseconds` how long a part may be without its file."""

    def __init__(
        self,
        store: FileStore,
        identity: Identity,
        clock: Clock,
        transfers: Transfers,
        allowance: Allowance,
        allowed: Allowed,
        tasks: BackgroundTasks,
        *,
        life_milliseconds: int,
        grace_milliseconds: int,
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._transfers = transfers
        self._allowance = allowance
        self._allowed = allowed
        self._tasks = tasks
        self._life = life_milliseconds
        self._grace = grace_milliseconds

    def transfer_of(self, subject: str) -> AbstractContextManager[None]:
        """Counts an upload or download while the context lasts; `capacity` when there are too many."""
        return self._transfers.one(self._identity.owner_digest(subject))

    async def upload(self, subject: str, announced: Announced, pieces: AsyncIterator[Piece]) -> Known:
        """The file, once it is whole and kept. Errors: `invalid_request`, `body_too_large`, `capacity`, `idempotency_mismatch`."""
        owner_id = self._identity.owner_digest(subject)
        media_type = self._allowed.check(announced.media_type)
        self._allowance.check_size(announced.size)
        request_key = f"{owner_id}.{announced.client_request_id}" if announced.client_request_id else ""
        known, files, used = await self._known(request_key), 0, 0
        if known is None:
            # Refused before the content is received, where that can be told.
            files, used = await self._used(owner_id)
            self._allowance.check_total(files + 1, used + max(announced.size, 1))
        receiving = _Receiving(self, new_file_id(), media_type, announced, (files, used), keep=known is None)
        try:
            size, digest = await receiving.receive(pieces)
            document: FileDocument = {
                "owner_id": owner_id,
                "name": label(announced.name),
                "media_type": media_type,
                "size": size,
                "sha256": digest,
                "upload_id": receiving.upload_id,
                "created_at": self._now(),
                "expires_at": self._now() + self._life,
            }
            if request_key:
                document["request_key"] = request_key
        except BaseException:
            self._discard(receiving)
            raise
        # From here a write may come to an unknown end: the parts of what may be a file are left to the collector, which looks.
        try:
            file = await self._kept(receiving.file_id, document, known)
        except HarnessError as refusal:
            if refusal.reason in (Reason.CAPACITY, Reason.IDEMPOTENCY_MISMATCH):
                # I35: the file surely is not there; what was refused takes no room until the collector comes.
                self._discard(receiving)
            raise
        if file[1]["upload_id"] != receiving.upload_id:
            self._discard(receiving)
        return file

    async def get(self, subject: str, file_id: str) -> FileDocument:
        """What is known of the caller's file; `not_found` for everybody else's too (I2)."""
        return await self._owned(self._identity.owner_digest(subject), file_id)

    async def download(self, file: FileDocument) -> AsyncGenerator[bytes, None]:
        """The content, part by part."""
        async for content in read_parts(self._store, file, 0):
            yield content

    async def page(self, subject: str, limit: int, after: str | None) -> tuple[list[Known], str | None]:
        """One page of the caller's files, the newest first. It may be shorter than `limit` where files have expired."""
        found, following = await self._store.page(self._identity.owner_digest(subject), limit, after)
        return [known for known in found if self._is_there(known[1])], following

    async def delete(self, subject: str, file_id: str) -> None:
        """The file is gone for everybody once this returns."""
        file = await self._owned(self._identity.owner_digest(subject), file_id)
        if not await self._store.delete(file_id):
            raise not_found("file")
        await self._delete_parts(file["upload_id"])

    async def resolve(self, owner_id: str, file_ids: list[str], keep_until: int | None) -> list[Known]:
        """Those of the files that the owner has, kept until then at least."""
        found: list[Known] = []
        for file_id in dict.fromkeys(file_ids):
            file = await self._kept_until(owner_id, file_id, keep_until)
            if file is not None:
                found.append((file_id, file))
        return found

    async def keep_part(self, file_id: str, upload_id: str, ordinal: int, content: bytes) -> None:
        """Keeps one part of an upload. Until its file is there, it is left alone for the grace and collected then."""
        check_at = self._now() + self._grace
        await self._store.insert_part(
            {"file_id": file_id, "upload_id": upload_id, "ordinal": ordinal, "check_at": check_at}, content
        )

    def check_size(self, size: int, beside: tuple[int, int]) -> None:
        """`body_too_large` beyond the bound of a file, `capacity` beyond that of a subject who has so many files and bytes beside it."""
        self._allowance.check_size(size)
        self._allowance.check_total(beside[0] + 1, beside[1] + size)

    async def _delete_parts(self, upload_id: str) -> None:
        """Deletes the parts of an upload. What is left where this is cut off is found by age."""
        for key in await self._store.parts_of_upload(upload_id):
            await self._store.delete_part(key)

    def _discard(self, receiving: "_Receiving") -> None:
        # A task of its own: whoever sent the upload may be gone, and its call with it.
        if receiving.parts and not self._tasks.closed:
            self._tasks.spawn("discard_upload", self._discarded(receiving))

    async def _discarded(self, receiving: "_Receiving") -> None:
        # What was being written when the upload broke off comes to its end first: a part that lands after the others were deleted would stay for the grace.
        await receiving.settled()
        await self._delete_parts(receiving.upload_id)

    async def _kept(self, file_id: str, document: FileDocument, known: Known | None) -> Known:
        """The file as it is kept now: this one, or the one that the same request made before."""
        if known is None and await self._store.insert(file_id, document):
            try:
                # I35: of uploads that race for the last room, whoever sees both goes.
                self._allowance.check_total(*await self._used(document["owner_id"]))
            except HarnessError:
                await self._store.delete(file_id)
                raise
            return file_id, document
        # Looked up again: while this upload was on its way, the file that was there when it began may have gone.
        known = await self._known(document.get("request_key", ""))
        if known is None:
            raise HarnessError(Reason.UNAVAILABLE, "The upload met another one: try again.", retry_after=0.1)
        check_same_file(known[1], document["name"], document["media_type"], document["sha256"])
        return known

    async def _known(self, request_key: str) -> Known | None:
        """The file of the same request, if it is there. One whose time is over gives its place up."""
        known = await self._store.by_request(request_key) if request_key else None
        if known is None or self._is_there(known[1]):
            return known
        await self._store.delete(known[0])
        return None

    async def _used(self, owner_id: str) -> tuple[int, int]:
        """How many files the subject has, and bytes in them."""
        files, size = 0, 0
        after: str | None = None
        while True:
            found, after = await self._store.page(owner_id, MAX_PAGE, after)
            for _, file in found:
                if self._is_there(file):
                    files, size = files + 1, size + file["size"]
            if after is None:
                return files, size

    async def _owned(self, owner_id: str, file_id: str) -> FileDocument:
        file = await self._store.file(file_id)
        # I2: not there, another's, or over: one answer.
        if file is None or file["owner_id"] != owner_id or not self._is_there(file):
            raise not_found("file")
        return file

    async def _kept_until(self, owner_id: str, file_id: str, keep_until: int | None) -> FileDocument | None:
        for _ in range(KEEP_TRIES):
            try:
                file = await self._owned(owner_id, file_id)
            except HarnessError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
                return None
            if keep_until is None or file["expires_at"] >= keep_until:
                return file
            if await self._store.expire_later(file_id, file, keep_until):
                return {**file, "expires_at": keep_until}
        raise HarnessError(
            Reason.UNAVAILABLE, "The file is named by too many runs at once: try again.", retry_after=0.1
        )

    def _is_there(self, file: FileDocument) -> bool:
        return self._now() < file["expires_at"]

    def _now(self) -> int:
        return int(self._clock.wall() * 1000)


class _Receiving:
    """One upload on its way: at most two parts of it are in memory. `beside`: files and bytes that its subject had when it began. With `keep` false it is
    only looked at: the file is there already.
    """

    def __init__(
        self,
        library: Library,
        file_id: str,
        media_type: str,
        announced: Announced,
        beside: tuple[int, int],
        *,
        keep: bool,
    ) -> None:
        self.file_id = file_id
        self.upload_id = new_nonce()
        self.parts = 0
        self._library = library
        self._announced = announced
        self._beside = beside
        self._keep = keep
        self._check = ContentCheck(media_type)
        self._digest = sha256()
        self._pending = bytearray()
        self._writing: asyncio.Future[None] | None = None
        self._size = 0

    async def receive(self, pieces: AsyncIterator[Piece]) -> tuple[int, str]:
        """Size and digest, when all of it has come."""
        complete = False
        async for piece in pieces:
            complete = piece.complete
            self._size += len(piece.chunk)
            self._library.check_size(self._size, self._beside)
            self._check.feed(piece.chunk)
            self._digest.update(piece.chunk)
            self._pending += piece.chunk
            while len(self._pending) >= PART_BYTES:
                await self._flush()
        check_whole(self._size, self._announced.size, complete=complete)
        self._check.end()
        if self._pending:
            await self._flush()
        return self._size, self._digest.hexdigest()

    async def settled(self) -> None:
        """Returns when nothing of it is being written."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _flush(self) -> None:
        content, self._pending = bytes(self._pending[:PART_BYTES]), self._pending[PART_BYTES:]
        if self._keep:
            self.parts += 1
            self._writing = asyncio.ensure_future(
                self._library.keep_part(self.file_id, self.upload_id, self.parts - 1, content)
            )
            await asyncio.shield(self._writing)


async def read_parts(store: FileStore, file: FileDocument, offset: int) -> AsyncGenerator[bytes, None]:
    """The content from an offset, part by part. Errors: `not_found` where the file goes meanwhile."""
    for ordinal in range(offset // PART_BYTES, -(-file["size"] // PART_BYTES)):
        content = await store.part(file["upload_id"], ordinal)
        if content is None:
            raise not_found("file")
        yield content[offset - ordinal * PART_BYTES :] if offset > ordinal * PART_BYTES else content
