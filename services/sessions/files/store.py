"""What is kept of files: what is known of each, and its content in parts (architecture, Stores)."""

from typing import Any, Final, cast

from services.common.errors import HarnessError, Reason
from services.common.store import (
    MAX_PAGE,
    Collection,
    Document,
    DuplicateKey,
    Index,
    InvalidQuery,
    Range,
    RecordStore,
)
from services.sessions.files.file import FileDocument, FilePartDocument, part_key
from services.sessions.store import answered

BY_OWNER: Final = Index("by_owner", ("owner_id", "created_at"))
BY_REQUEST: Final = Index("by_request", ("request_key",), unique=True, sparse=True)
FILES: Final = Collection("files", (BY_OWNER, BY_REQUEST), expires="expires_at")
"""Whole files, by id. A file is there, for anybody, once it is here."""

BY_UPLOAD: Final = Index("by_upload", ("upload_id", "ordinal"), unique=True)
BY_CHECK: Final = Index("by_check", ("check_at",))
FILE_PARTS: Final = Collection("file_parts", (BY_UPLOAD, BY_CHECK), blobs=True)
"""Content, inserted before its file and deleted after it."""

FILE_COLLECTIONS: Final = (FILES, FILE_PARTS)

Known = tuple[str, FileDocument]
"""A file's id and what is known of it."""


class FileStore:
    """Typed access to the two collections. Trouble of the store is raised as a retryable `HarnessError` (I34)."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def file(self, file_id: str) -> FileDocument | None:
        """What is known of a file, whoever owns it."""
        record = await answered(self._records.get(FILES, file_id))
        return None if record is None else cast(FileDocument, record.document)

    async def by_request(self, request_key: str) -> Known | None:
        """The file that was uploaded under this key."""
        record = await answered(self._records.find(FILES, BY_REQUEST, (request_key,)))
        return None if record is None else (record.key, cast(FileDocument, record.document))

    async def insert(self, file_id: str, document: FileDocument) -> bool:
        """False: the id or the request's key is taken."""
        try:
            await answered(self._records.insert(FILES, file_id, cast(Document, document)))
        except DuplicateKey:
            return False
        return True

    async def expire_later(self, file_id: str, document: FileDocument, expires_at: int) -> bool:
        """False: it has changed since, or is gone."""
        rev: int = cast(Document, document)["rev"]
        later = cast(Document, {**document, "expires_at": expires_at})
        return await answered(self._records.compare_and_set(FILES, file_id, rev, later))

    async def page(self, owner_id: str, limit: int, after: str | None) -> tuple[list[Known], str | None]:
        """One page of a subject's files, the newest first."""
        try:
            page = await answered(
                self._records.query(FILES, BY_OWNER, (owner_id,), descending=True, limit=limit, after=after)
            )
        except InvalidQuery:
            raise HarnessError(Reason.INVALID_REQUEST, "page_token is not one of a page before.") from None
        return [(record.key, cast(FileDocument, record.document)) for record in page.records], page.next

    async def delete(self, file_id: str) -> bool:
        """False: it is gone."""
        return await answered(self._records.delete(FILES, file_id))

    async def delete_expired(self, now: int, limit: int) -> int:
        """How many files were deleted whose time was over."""
        return await answered(self._records.delete_expired(FILES, now, limit))

    async def insert_part(self, document: FilePartDocument, content: bytes) -> None:
        """Keeps one part; its key is its upload's alone, so nobody else can have it."""
        key = part_key(document["upload_id"], document["ordinal"])
        await answered(self._records.insert(FILE_PARTS, key, cast(Document, document), content))

    async def part(self, upload_id: str, ordinal: int) -> bytes | None:
        """The content of one part."""
        return await answered(self._records.get_blob(FILE_PARTS, part_key(upload_id, ordinal)))

    async def parts_of_upload(self, upload_id: str) -> list[str]:
        """Keys of the first parts of an upload, at most a page of them."""
        page = await answered(self._records.query(FILE_PARTS, BY_UPLOAD, (upload_id,), limit=MAX_PAGE))
        return [record.key for record in page.records]

    async def parts_to_check(self, now: int, limit: int) -> list[tuple[str, FilePartDocument, int]]:
        """Parts whose time to be looked at has come, each with its key and revision."""
        page = await answered(self._records.query(FILE_PARTS, BY_CHECK, within=Range(at_most=now), limit=limit))
        return [(record.key, cast(FilePartDocument, record.document), record.rev) for record in page.records]

    async def check_part_later(self, key: str, document: FilePartDocument, rev: int, check_at: int) -> None:
        """Leaves a part until another look; a part that is gone needs none."""
        later: Any = {**document, "check_at": check_at}
        await answered(self._records.compare_and_set(FILE_PARTS, key, rev, later))

    async def delete_part(self, key: str) -> None:
        """Deletes a part; one that is gone is no error."""
        await answered(self._records.delete(FILE_PARTS, key))
