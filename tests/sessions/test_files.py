"""Files that subjects upload and runs read: real processes, real stores."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from harness.files.v1 import file_library_service_pb2 as library
from services.common.errors import HarnessError, Reason
from tests.sessions.conftest import Start
from tests.sessions.file_client import CHUNK, TEXT, FileClient, half_an_upload, sha256
from tests.sessions.processes import Client, Sessions, fence_of, refused, token_of

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 40


@pytest.fixture
def files(client: Client) -> FileClient:
    """Somebody with no files yet."""
    return FileClient(client)


async def test_a_file_is_what_was_uploaded(files: FileClient) -> None:
    content = b"0123456789" * 260_000
    file = await files.upload(content, chunk=700_001)
    assert (file.name, file.media_type, file.size, file.sha256) == ("notes.txt", TEXT, len(content), sha256(content))
    assert file.expires_at.seconds > time.time() + 86_400
    assert await files.get(file.file_id) == file
    assert await files.download(file.file_id) == content
    assert await files.page() == ([file.file_id], "")


async def test_i2_files_of_another_subject_do_not_exist(files: FileClient) -> None:
    file = await files.upload(b"mine")
    other = FileClient(files.client)
    for call in (other.get, other.download, other.delete):
        theirs = await refused(call(file.file_id), Reason.NOT_FOUND)
        nobodys = await refused(call("fil_none"), Reason.NOT_FOUND)
        assert str(theirs) == str(nobodys)
    assert await other.page() == ([], "")
    assert await other.resolve(file.file_id, keep_seconds=60) == {}
    assert await files.download(file.file_id) == b"mine"


async def test_a_deleted_file_is_gone_with_its_content(files: FileClient) -> None:
    file = await files.upload(b"gone soon")
    await files.delete(file.file_id)
    await refused(files.get(file.file_id), Reason.NOT_FOUND)
    await refused(files.delete(file.file_id), Reason.NOT_FOUND)
    assert parts_of(files.client.sessions, file.file_id) == 0


async def test_the_same_upload_again_is_the_same_file(files: FileClient) -> None:
    first = await files.upload(b"once", client_request_id="u1")
    assert await files.upload(b"once", client_request_id="u1") == first
    await refused(files.upload(b"twice", client_request_id="u1"), Reason.IDEMPOTENCY_MISMATCH)
    raced = await asyncio.gather(*(files.upload(b"raced", client_request_id="u2") for _ in range(6)))
    assert {file.file_id for file in raced} == {raced[0].file_id}
    assert sorted((await files.page())[0]) == sorted([first.file_id, raced[0].file_id])
    assert await files.download(raced[0].file_id) == b"raced"
    # The key is the subject's own.
    assert (await FileClient(files.client).upload(b"else", client_request_id="u1")).file_id != first.file_id


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("../../etc/passwd", ".._.._etc_passwd"),
        ("a\\b\x00c\nd\u202egpj.exe", "a_b_c_d_gpj.exe"),
        ("  Bericht: März.pdf ", "Bericht: März.pdf"),
        ("..", "file"),
        ("", "file"),
        ("x" * 400, "x" * 255),
    ],
)
async def test_a_name_is_a_label_and_never_a_path(files: FileClient, name: str, label: str) -> None:
    assert (await files.upload(b"text", name=name)).name == label


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x7fELF" + b"\x00" * 20, TEXT),
        (b"<html>", "text/html"),
        (b"%PDF-1.7", "image/png"),
        (PNG, "application/pdf"),
        (b"GIF89", "image/gif"),
        (b"late \x00", TEXT),
        (b"a" * CHUNK + b"\xff", TEXT),
        (b"cut \xc3", TEXT),
        (b"x", ""),
        (b"x", "text/plain\x00"),
    ],
)
async def test_content_has_to_be_what_it_is_declared_to_be(files: FileClient, content: bytes, media_type: str) -> None:
    error = await refused(files.upload(content, media_type=media_type), Reason.INVALID_REQUEST)
    assert [issue.path for issue in error.details] == ["media_type"]
    assert await files.page() == ([], "")


async def test_media_types_are_kept_plain(files: FileClient) -> None:
    text = await files.upload("straße".encode(), media_type="Text/PLAIN; charset=utf-8", chunk=5)
    image = await files.upload(PNG, media_type="image/png", chunk=3)
    assert (text.media_type, image.media_type) == (TEXT, "image/png")


async def test_an_upload_that_is_not_whole_is_no_file(files: FileClient) -> None:
    async def cut_off() -> AsyncIterator[Any]:
        yield library.UploadFileRequest(name="x", media_type=TEXT, chunk=b"x")

    await refused(files.upload(b""), Reason.INVALID_REQUEST)
    await refused(files.send(cut_off()), Reason.INVALID_REQUEST)
    await refused(files.upload(b"four", size=5), Reason.INVALID_REQUEST)
    await refused(files.upload(b"four", size=3), Reason.INVALID_REQUEST)
    assert await files.page() == ([], "")
    assert (await files.upload(b"four", size=4)).size == 4


async def test_i35_files_are_bounded_in_size_number_and_sum(start: Start) -> None:
    client = await start(max_file_bytes=100, max_files_of_subject=3, max_file_bytes_of_subject=250)
    files = FileClient(client)
    await refused(files.upload(b"x" * 101), Reason.BODY_TOO_LARGE)
    await refused(files.upload(b"x", size=101), Reason.BODY_TOO_LARGE)
    big = [await files.upload(b"x" * 100) for _ in range(2)]
    await refused(files.upload(b"x" * 51), Reason.CAPACITY)
    await files.upload(b"x" * 50)
    await files.delete(big[0].file_id)
    await files.upload(b"x")
    error = await refused(files.upload(b"x"), Reason.CAPACITY)
    assert not error.retryable
    assert len((await files.page())[0]) == 3
    # Also when they race for the last room.
    many = FileClient(client)
    await asyncio.gather(*(tried(many.upload(b"x" * 90)) for _ in range(8)))
    assert len((await many.page())[0]) <= 2


async def test_i35_transfers_at_once_are_bounded(start: Start) -> None:
    client = await start(max_file_transfers=2, max_file_transfers_of_subject=1)
    files = FileClient(client)
    sent, go_on = asyncio.Event(), asyncio.Event()
    slow = asyncio.create_task(tried(files.send(half_an_upload(sent, go_on))))
    await until(lambda: parts_of(client.sessions) >= 1)
    error = await refused(files.upload(b"second"), Reason.CAPACITY)
    assert error.retryable
    await FileClient(client).upload(b"of somebody else")
    go_on.set()
    assert (await slow).size == 2 * CHUNK + 1
    assert (await files.upload(b"third")).size == 5


async def test_i35_an_upload_that_stands_still_is_cut_off(start: Start) -> None:
    files = FileClient(await start(file_transfer_seconds=0.3))
    await refused(files.send(half_an_upload(asyncio.Event(), asyncio.Event())), Reason.DEADLINE_EXCEEDED)


async def test_files_are_listed_in_pages_the_newest_first(files: FileClient) -> None:
    uploaded = [(await files.upload(b"%d" % number)).file_id for number in range(7)]
    listed, token = await files.page(3)
    while token:
        more, token = await files.page(3, token)
        listed += more
    assert set(listed) == set(uploaded)
    assert len(listed) == 7
    await refused(files.page(3, "nonsense"), Reason.INVALID_REQUEST)


async def test_a_file_ends_with_its_time_and_stays_for_a_run_that_names_it(start: Start) -> None:
    client = await start(part_sweep_seconds=0.1, part_recheck_seconds=1, part_grace_seconds=1)
    files = FileClient(client)
    short = FileClient(await start("b", file_life_seconds=1), files.subject)
    kept, lost = await files.upload(b"kept"), await short.upload(b"lost", client_request_id="u")
    found = await files.resolve(kept.file_id, "fil_none", keep_seconds=8_640_000)
    assert list(found) == [kept.file_id]
    assert found[kept.file_id].expires_at.seconds > time.time() + 8_000_000
    # Nothing makes it shorter again.
    again = await files.resolve(kept.file_id, keep_seconds=1)
    assert again == found
    await until(lambda: rows_of(client.sessions, "files") == 1)
    await refused(files.get(lost.file_id), Reason.NOT_FOUND)
    assert await files.resolve(lost.file_id, keep_seconds=3600) == {}
    assert await files.page() == ([kept.file_id], "")
    assert await files.download(kept.file_id) == b"kept"


async def test_half_an_upload_is_invisible_whatever_died(start: Start) -> None:
    client = await start()
    files = FileClient(client)
    sent, go_on = asyncio.Event(), asyncio.Event()
    left = asyncio.create_task(tried(files.send(half_an_upload(sent, go_on))))
    await until(lambda: parts_of(client.sessions) >= 2)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    # Its sender is gone: nothing of it stays.
    await until(lambda: parts_of(client.sessions) == 0)
    killed = asyncio.create_task(tried(files.send(half_an_upload(sent, go_on))))
    await until(lambda: parts_of(client.sessions) >= 2)
    assert client.sessions.process is not None
    os.kill(client.sessions.process.pid, signal.SIGKILL)
    client.sessions.process.wait(30)
    assert isinstance(await killed, HarnessError)
    again = FileClient(await start("b"), files.subject)
    assert await again.page() == ([], "")
    assert await again.download((await again.upload(b"whole")).file_id) == b"whole"


async def test_a_run_reads_the_files_it_names_whole_and_from_an_offset(files: FileClient) -> None:
    content = bytes(range(32, 96)) * 40_000
    file = await files.upload(content)
    fence = fence_of(await files.client.granted("r-read", "c-read", subject=files.subject))
    assert await files.read(fence, file.file_id) == (content, file.sha256)
    for offset in (1, CHUNK, CHUNK + 7, len(content) - 1):
        assert await files.read(fence, file.file_id, offset=offset) == (content[offset:], file.sha256)
    for offset in (len(content), len(content) + 5):
        assert await files.read(fence, file.file_id, offset=offset) == (b"", file.sha256)


async def test_i28_a_token_opens_the_files_it_names_and_nothing_else(files: FileClient) -> None:
    client = files.client
    mine, unnamed = await files.upload(b"mine"), await files.upload(b"unnamed")
    theirs = await FileClient(client).upload(b"theirs")
    fence = fence_of(await client.granted("r-token", "c-token", subject=files.subject))

    def token(**changes: Any) -> str:
        return token_of(fence, **{"audience": "files", "file_ids": (mine.file_id, theirs.file_id), **changes})

    assert (await files.read(fence, mine.file_id, token=token()))[0] == b"mine"
    await refused(files.read(fence, unnamed.file_id, token=token()), Reason.NOT_FOUND)
    # Whatever a token says, another owner's file is not there.
    await refused(files.read(fence, theirs.file_id, token=token()), Reason.NOT_FOUND)
    for audience in ("state", "tool", "model"):
        await refused(files.read(fence, mine.file_id, token=token(audience=audience)), Reason.UNAUTHENTICATED)
    # Nor does it open the facade beside it.
    await refused(client.write(fence, "k", b"x", token=token()), Reason.UNAUTHENTICATED)
    await refused(client.mark_uncertain(fence, token()), Reason.UNAUTHENTICATED)
    for part, value in (("binding_id", "bnd_else"), ("epoch", 9), ("runtime_generation", 9), ("run_id", "r-else")):
        await refused(files.read(fence, mine.file_id, token=token(**{part: value})))


async def test_i10_a_fence_that_is_not_committed_reads_nothing(files: FileClient) -> None:
    client = files.client
    file = await files.upload(b"content")
    binding = await client.granted("r-fence", "c-fence", subject=files.subject)
    fence = fence_of(binding)
    for part in ("epoch", "turn", "run_generation"):
        changed = fence_of(binding, **{part: getattr(fence, part) + 1})
        await refused(files.read(changed, file.file_id))
    await client.claim(binding.binding_id, "r-fence", 2)
    error = await refused(files.read(fence, file.file_id))
    assert error.retryable  # its runtime may be in the middle of being attached again
    newer = fence_of(binding, run_generation=2)
    assert (await files.read(newer, file.file_id))[0] == b"content"
    # Worth nothing after the run.
    await client.release(binding.binding_id, "r-fence")
    await refused(files.read(newer, file.file_id))


async def test_two_replicas_serve_the_same_files(start: Start) -> None:
    one = FileClient(await start("a"))
    two = FileClient(await start("b"), one.subject)
    file = await one.upload(b"x" * (CHUNK + 1))
    assert await two.download(file.file_id) == b"x" * (CHUNK + 1)
    assert (await two.upload(b"k", client_request_id="k")) == (await one.upload(b"k", client_request_id="k"))
    await two.delete(file.file_id)
    await refused(one.get(file.file_id), Reason.NOT_FOUND)


async def test_i22_content_and_names_are_not_logged(start: Start) -> None:
    client = await start(part_sweep_seconds=0.1)
    files = FileClient(client)
    file = await files.upload(b"canary-7a1f-content", name="canary-7a1f-name")
    await refused(files.upload(b"canary-7a1f\x00", name="canary-7a1f"), Reason.INVALID_REQUEST)
    await files.download(file.file_id)
    await files.delete(file.file_id)
    await client.sessions.stop()
    assert "canary-7a1f" not in client.sessions.log.read_text()
    assert files.subject not in client.sessions.log.read_text()


def parts_of(sessions: Sessions, file_id: str = "") -> int:
    """How many parts are kept, of one file or of all."""
    return rows_of(sessions, "file_parts", f'%"{file_id}%')


def rows_of(sessions: Sessions, collection: str, like: str = "%") -> int:
    """How many records are in the store's file."""
    with closing(sqlite3.connect(f"file:{sessions.database}?mode=ro", uri=True)) as connection:
        query = f"select count(*) from records_{collection} where cast(document as text) like ?"
        return int(connection.execute(query, (like,)).fetchone()[0])


async def until(condition: Any) -> None:
    """Bounded: nothing signals what another process has written."""
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def tried(call: Any) -> Any:
    try:
        return await call
    except HarnessError as error:
        return error
