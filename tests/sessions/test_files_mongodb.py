"""The tests of files that look at nothing but the service, with everything kept in MongoDB."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import test_files as shown
from tests.sessions.conftest import Start
from tests.sessions.file_client import CHUNK, FileClient
from tests.sessions.processes import Client, Sessions
from tests.support import mongodb

files = shown.files
test_a_file_is_what_was_uploaded = shown.test_a_file_is_what_was_uploaded
test_the_same_upload_again_is_the_same_file = shown.test_the_same_upload_again_is_the_same_file
test_an_upload_that_is_not_whole_is_no_file = shown.test_an_upload_that_is_not_whole_is_no_file
test_files_are_listed_in_pages_the_newest_first = shown.test_files_are_listed_in_pages_the_newest_first
test_a_run_reads_its_files = shown.test_a_run_reads_the_files_it_names_whole_and_from_an_offset
test_two_replicas_serve_the_same_files = shown.test_two_replicas_serve_the_same_files
test_i2_files_of_another_subject_do_not_exist = shown.test_i2_files_of_another_subject_do_not_exist
test_i10_a_fence_that_is_not_committed_reads_nothing = shown.test_i10_a_fence_that_is_not_committed_reads_nothing
test_i28_a_token_opens_the_files_it_names = shown.test_i28_a_token_opens_the_files_it_names_and_nothing_else
test_i35_files_are_bounded = shown.test_i35_files_are_bounded_in_size_number_and_sum


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mongodb.database() as url:
        yield url


@pytest.fixture(scope="module")
def shared(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    sessions = Sessions(tmp_path_factory.mktemp("s"), settings={"HARNESS_STORE_URL": url}).start_and_wait()
    yield sessions
    sessions.stop_and_wait()


@pytest.fixture
async def start(url: str, folder: Path) -> AsyncIterator[Start]:
    """Starts a process on the module's database and returns a client of it."""
    started: list[tuple[Sessions, Client]] = []

    async def start_one(name: str = "a", **settings: Any) -> Client:
        given = {f"HARNESS_{key.upper()}": str(value) for key, value in settings.items()}
        sessions = await Sessions(folder, name, {"HARNESS_STORE_URL": url, **given}).start()
        started.append((sessions, Client(sessions)))
        return started[-1][1]

    yield start_one
    for sessions, client in started:
        await client.close()
        await sessions.stop()


async def test_a_file_ends_with_its_time_unless_a_run_named_it(start: Start) -> None:
    client = await start("a", part_sweep_seconds=0.1, part_recheck_seconds=1)
    here = FileClient(client)
    short = FileClient(await start("b", file_life_seconds=1), here.subject)
    kept, lost = await here.upload(b"k" * (CHUNK + 1)), await short.upload(b"lost")
    assert list(await here.resolve(kept.file_id, keep_seconds=8_640_000)) == [kept.file_id]
    async with asyncio.timeout(90):
        while (await here.page())[0] != [kept.file_id]:  # noqa: ASYNC110 - nothing signals what another process deletes
            await asyncio.sleep(0.05)
    assert await here.resolve(lost.file_id, keep_seconds=3600) == {}
    assert await here.download(kept.file_id) == b"k" * (CHUNK + 1)
