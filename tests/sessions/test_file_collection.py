"""What becomes of files and parts as time goes by: a real store, and a clock that is set."""

import asyncio
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

    def __init__(self, records: RecordStore, *, max_total_bytes: int = 1 << 30) -> None:
        self.records = records
        self.clock = SetClock()
        store = FileStore(records)
        self.library = Library(
            store,
            Identity(b"identity-key-of-the-tests", "local"),
            self.clock,
            Transfers(limit=9, limit_of_binding=9),
            Allowance(1 << 22, 100, max_total_bytes),
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
        return await self.parts()

    async def parts(self) -> int:
        """Kept now, whether anybody needs them or not."""
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


async def test_i35_what_is_refused_takes_no_room_until_it_is_collected(tmp_path: Path) -> None:
    records = await open_record_store(f"sqlite://{tmp_path}/files.sqlite3", FILE_COLLECTIONS)
    shelf = Shelf(records, max_total_bytes=2 << 20)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[Piece]:
        yield HALF
        begun.set()
        await go_on.wait()
        yield REST

    async def endless() -> AsyncIterator[Piece]:
        yield REST
        for _ in range(3):
            yield HALF
        raise AssertionError("it was refused before")

    first = asyncio.create_task(shelf.library.upload("somebody", Announced("n", "text/plain", 0, ""), slow()))
    await begun.wait()
    await shelf.upload(HALF, REST)
    # Its room was there when it began, and another one has it by now.
    go_on.set()
    with pytest.raises(HarnessError, match="delete some"):
        await first
    # What does not say its size is refused once it is more than there is room for.
    with pytest.raises(HarnessError, match="delete some"):
        await shelf.library.upload("somebody", Announced("n", "text/plain", 0, ""), endless())
    async with asyncio.timeout(90):
        while await shelf.parts() > 2:  # noqa: ASYNC110 - the store signals nothing
            await asyncio.sleep(0.005)
    await records.close()


async def test_a_file_that_goes_while_it_is_uploaded_again_is_not_answered(shelf: Shelf) -> None:
    first, _ = await shelf.upload(REST, key="k")

    async def deleting() -> AsyncIterator[Piece]:
        await shelf.library.delete("somebody", first)
        yield REST

    with pytest.raises(HarnessError, match="try again"):
        await shelf.library.upload("somebody", Announced("n", "text/plain", 0, "k"), deleting())
    assert (await shelf.upload(REST, key="k"))[0] != first


async def test_a_key_is_free_again_when_its_file_is_over(shelf: Shelf) -> None:
    first, _ = await shelf.upload(REST, key="k")
    shelf.clock.seconds += LIFE / 1000
    # Nobody has collected it yet.
    second, _ = await shelf.upload(REST, key="k")
    assert second != first
    assert await shelf.upload(REST, key="k") == (second, await shelf.library.get("somebody", second))
