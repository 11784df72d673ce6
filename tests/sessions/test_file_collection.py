"""What becomes of files and parts as time goes by: a real store, and a clock that is set."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import HarnessError
from services.common.ids import Identity
from services.common.store import MAX_PAGE, RecordStore, open_record_store
from services.common.tasks import BackgroundTasks
from services.sessions.files.collection import FileCollector
from services.sessions.files.file import Allowance
from services.sessions.files.library import Announced, Library, Piece
from services.sessions.files.media import Allowed
from services.sessions.files.store import FILE_COLLECTIONS, FILE_PARTS, FileStore
from services.sessions.transfers import Transfers

LIFE, GRACE, RECHECK = 100_000, 5_000, 30_000
HALF = Piece(b"x" * (1 << 20), complete=False)
REST = Piece(b"y", complete=True)


class SetClock:
    """Says what it is told."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def wall(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


class Shelf:
    """A library, its collector and its clock over one store."""

    def __init__(self, records: RecordStore) -> None:
        self.records = records
        self.clock = SetClock()
        store = FileStore(records)
        self.library = Library(
            store,
            Identity(b"identity-key-of-the-tests", "local"),
            self.clock,
            Transfers(limit=9, limit_of_binding=9),
            Allowance(1 << 22, 100, 1 << 30),
            Allowed(("text/plain",)),
            BackgroundTasks(),
            life_milliseconds=LIFE,
            grace_milliseconds=GRACE,
        )
        self.collector = FileCollector(store, self.clock, recheck_milliseconds=RECHECK)

    async def upload(self, *pieces: Piece, key: str = "") -> Any:
        async def sent() -> AsyncIterator[Piece]:
            for piece in pieces:
                yield piece

        return await self.library.upload("somebody", Announced("n", "text/plain", 0, key), sent())

    async def parts_after(self, milliseconds: int) -> int:
        self.clock.seconds += milliseconds / 1000
        await self.collector.turn()
        return await self.records.count(FILE_PARTS, FILE_PARTS.indexes[1], (), at_most=MAX_PAGE)


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    records = await open_record_store(f"sqlite://{tmp_path}/files.sqlite3", FILE_COLLECTIONS)
    yield Shelf(records)
    await records.close()


async def test_parts_stay_with_their_file_and_go_with_it(shelf: Shelf) -> None:
    file_id, _ = await shelf.upload(HALF, REST)
    for wait in (GRACE, RECHECK, RECHECK, RECHECK):
        assert await shelf.parts_after(wait) == 2
    assert await shelf.parts_after(LIFE) == 0
    with pytest.raises(HarnessError):
        await shelf.library.get("somebody", file_id)


async def test_parts_of_an_upload_whose_process_died_go_after_the_grace(shelf: Shelf) -> None:
    await shelf.library.keep_part("fil_never", "upload", 0, b"x")
    assert await shelf.parts_after(GRACE - 1) == 1
    assert await shelf.parts_after(1) == 0


async def test_parts_of_a_deletion_that_was_cut_off_go_when_they_are_looked_at(shelf: Shelf) -> None:
    file_id, _ = await shelf.upload(HALF, REST)
    await FileStore(shelf.records).delete(file_id)
    assert await shelf.parts_after(GRACE) == 0


async def test_a_file_that_is_kept_for_a_run_outlives_its_time(shelf: Shelf) -> None:
    file_id, file = await shelf.upload(HALF, REST)
    until = file["expires_at"] + LIFE
    await shelf.library.resolve(file["owner_id"], [file_id], until)
    assert await shelf.parts_after(LIFE + RECHECK) == 2
    kept = await shelf.library.get("somebody", file_id)
    assert b"".join([part async for part in shelf.library.download(kept)]) == HALF.chunk + REST.chunk
    assert await shelf.parts_after(LIFE) == 0


async def test_a_key_is_free_again_when_its_file_is_over(shelf: Shelf) -> None:
    first, _ = await shelf.upload(REST, key="k")
    shelf.clock.seconds += LIFE / 1000
    # Nobody has collected it yet.
    second, _ = await shelf.upload(REST, key="k")
    assert second != first
    assert await shelf.upload(REST, key="k") == (second, await shelf.library.get("somebody", second))
