"""`harness files` and `harness run --file`, against a real gateway whose files are kept by a real sessions process."""

import asyncio
import os
import pty
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cli.api import Api
from cli.connection import connection_from
from cli.download import download, local_name
from cli.errors import CommandError, ExitCode
from cli.output import Output
from cli.turn import Turn
from cli.upload import local_file, upload
from harness.run.v1 import run_service_pb2
from tests.cli.conftest import COMMAND, ROOT, Ended, environment, harness
from tests.cli.stand_in import StandIn, serving
from tests.gateway.conftest import API_TOKEN, Running
from tests.gateway.kept_files import kept_by

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMIT = 1_000_000
SCRIPT = '{"n": 1}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Running]:
    bound = {"HARNESS_MAX_FILE_BYTES": str(LIMIT)}
    async with kept_by(bound, **bound) as (gateway, _):
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def mesh() -> AsyncIterator[StandIn]:
    async with serving(StandIn()) as stand_in:
        yield stand_in


def variables(gateway: Running, subject: str) -> dict[str, str]:
    """Who speaks to it."""
    return {"HARNESS_URL": gateway.url, "HARNESS_TOKEN": API_TOKEN, "HARNESS_SUBJECT": subject}


@asynccontextmanager
async def speaking(who: dict[str, str]) -> AsyncGenerator[tuple[Api, Output]]:
    """What a command works with, without a process for each."""
    async with Api(connection_from(who)) as api:
        yield api, Output(as_json=True)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_a_file_goes_to_the_mesh_and_comes_back(gateway: Running, tmp_path: Path) -> None:
    who, content = variables(gateway, "round"), os.urandom(300_000).hex().encode()
    path, target = tmp_path / "notes.md", tmp_path / "copy"
    path.write_bytes(content)
    sent = await command(who, "files", "upload", str(path), "--json")
    (file,) = sent.document["files"]
    assert (sent.code, sent.err) == (0, "")
    assert (file["name"], file["media_type"], file["size"]) == ("notes.md", "text/markdown", len(content))
    assert (await command(who, "files", "list", "--json")).document == {"files": [file], "more": False}
    listed = (await command(who, "files", "list")).out.splitlines()
    assert listed[0].split() == ["FILE", "NAME", "TYPE", "BYTES", "CREATED", "KEPT", "UNTIL"]
    assert listed[1].split()[:4] == [file["file_id"], "notes.md", "text/markdown", str(len(content))]
    got = await command(who, "files", "download", file["file_id"], "--output", str(target), "--json")
    assert (got.document, target.read_bytes()) == ({**file, "path": str(target)}, content)
    piped = await command(who, "files", "download", file["file_id"], "--output", "-")
    assert (piped.code, piped.out.encode()) == (0, content)
    assert (await command(who, "files", "delete", file["file_id"])).out == f"{file['file_id']}: deleted\n"
    gone = await command(who, "files", "show", file["file_id"], "--json")
    assert (gone.code, gone.error["code"], "harness files list" in gone.error["hint"]) == (4, "not_found", True)
    assert names_in(tmp_path) == ["copy", "notes.md"]


async def test_standard_input_is_uploaded_under_a_name(gateway: Running) -> None:
    who = variables(gateway, "stdin")
    sent = await command(who, "files", "upload", "-", "--name", "a.csv", "--json", stdin=b"a,b\n")
    (file,) = sent.document["files"]
    assert (file["name"], file["media_type"], file["size"]) == ("a.csv", "text/csv", 4)


@pytest.mark.parametrize(
    ("name", "content", "media_type", "said"),
    [
        ("nothing", None, None, "No such file"),
        ("a\0b", None, None, "not a path"),
        ("empty.txt", b"", None, "is empty"),
        ("unknown.zzz", b"x", None, "cannot be told from its name"),
        (".", None, None, "is a folder"),
    ],
)
async def test_what_can_be_no_upload_is_told_before_anything_is_sent(
    tmp_path: Path, name: str, content: bytes | None, media_type: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CommandError, match=said) as refused:
        local_file(f"{tmp_path}/{name}", None, media_type)
    assert (refused.value.exit_code, bool(refused.value.hint)) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("big.txt", b"x" * (LIMIT + 1), "body_too_large", f"at most {LIMIT} bytes: send a smaller one"),
        ("lie.png", b"no picture at all", "invalid_request", "is not image/png"),
        ("page.html", b"<p>", "invalid_request", "send one of"),
        ("null.txt", b"\x00", "invalid_request", "is not text/plain"),
    ],
)
async def test_what_the_mesh_refuses_says_what_to_do(
    gateway: Running, tmp_path: Path, name: str, content: bytes, code: str, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    async with speaking(variables(gateway, "refused")) as (api, output):
        with pytest.raises(CommandError) as refused:
            await upload(api, output, local_file(str(tmp_path / name)), "r")
    shown = [refused.value.message, *(problem.message for problem in refused.value.problems)]
    assert (refused.value.exit_code, refused.value.code) == (ExitCode.FAILED, code)
    assert any(said in each for each in shown)


async def test_i2_a_file_of_somebody_else_is_not_found(gateway: Running, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    async with speaking(variables(gateway, "mine")) as (api, output):
        file = await upload(api, output, local_file(str(tmp_path / "mine.txt")), "r")
    said: set[tuple[str, str, int]] = set()
    async with speaking(variables(gateway, "theirs")) as (api, output):
        for file_id in (file["file_id"], "fil_none"):
            for call in (
                api.get(f"/api/v1/files/{file_id}"),
                api.delete(f"/api/v1/files/{file_id}"),
                download(api, output, file_id, str(tmp_path / "theirs"), replace=False),
            ):
                with pytest.raises(CommandError) as refused:
                    await call
                said.add((refused.value.message, refused.value.hint, refused.value.exit_code))
    assert [code for *_, code in said] == [ExitCode.NOT_FOUND]
    assert names_in(tmp_path) == ["mine.txt"]


async def test_a_run_gets_the_files_it_is_started_with(gateway: Running, tmp_path: Path) -> None:
    who = variables(gateway, "runner")
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text(f"file {number}")
    known = await command(who, "files", "upload", str(tmp_path / "1.txt"), "--json")
    kept = known.document["files"][0]["file_id"]
    arguments = ("--file", str(tmp_path / "1.txt"), "--file", str(tmp_path / "2.txt"), "--file-id", kept)
    same = ("run", "a", SCRIPT, *arguments, "--conversation", "c", "--request-id", "r1", "--detach", "--json")
    runs = [await command(who, *same) for _ in range(2)]
    assert [each.code for each in runs] == [0, 0], runs
    assert runs[0].document["run_id"] == runs[1].document["run_id"]
    request = run_service_pb2.StartRunRequest.FromString(gateway.mesh.runs[runs[0].document["run_id"]].request)
    files = {file["file_id"]: file["name"] for file in await files_of(who)}
    assert [files[file_id] for file_id in request.files] == ["1.txt", "2.txt", "1.txt"]
    # The same start again uploaded nothing twice.
    assert len(files) == 3


async def test_a_start_that_is_refused_leaves_no_file(gateway: Running, tmp_path: Path) -> None:
    who, path = variables(gateway, "refused-start"), tmp_path / "a.txt"
    path.write_text("text")
    busy = await gateway.mesh.make_run("refused-start", conversation_id="busy")
    result = await command(who, "run", "a", "hi", "--file", str(path), "--conversation", "busy", "--json")
    assert (result.code, result.error["run_id"]) == (5, busy.record.run_id)
    assert await files_of(who) == []


@pytest.mark.parametrize(
    ("files", "file_ids", "said"),
    [(["-"], [], "standard input"), (["none.txt"], [], "No such file"), ([], ["f"] * 33, "at most 32 files")],
)
async def test_what_cannot_be_attached_is_told_before_anything_is_sent(
    files: list[str], file_ids: list[str], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        Turn.create("a", "hi", None, None, "reject", None, files, file_ids)


async def test_an_upload_whose_answer_is_lost_is_sent_again(mesh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 200_000)
    file = local_file(str(tmp_path / "a.txt"))
    async with speaking({"HARNESS_URL": mesh.url}) as (api, output):
        mesh.uploads_torn = 2
        await upload(api, output, file, "r1")
        assert [seen.body for seen in mesh.seen] == [b"x" * 200_000] * 3
        assert {seen.query["client_request_id"] for seen in mesh.seen} == {"r1"}
        assert {seen.headers["content-length"] for seen in mesh.seen} == {"200000"}
        mesh.uploads_torn = 9
        with pytest.raises(CommandError) as lost:
            await upload(api, output, file, "r2")
        assert (lost.value.exit_code, mesh.uploads_torn) == (ExitCode.UNREACHABLE, 6)
        (tmp_path / "a.txt").write_bytes(b"x" * 200_001)
        with pytest.raises(CommandError, match="changed while it was sent"):
            await upload(api, output, file, "r3")


@pytest.mark.parametrize("come", [b"", b"abc", b"abcdefg", b"bytes!"])
async def test_half_a_download_is_never_there(mesh: StandIn, tmp_path: Path, come: bytes) -> None:
    async with speaking({"HARNESS_URL": mesh.url}) as (api, output):
        mesh.files["fil_1"] = ("../../a.txt", b"abcdef", come)
        with pytest.raises(CommandError) as broken:
            await download(api, output, "fil_1", str(tmp_path), replace=False)
        assert broken.value.exit_code in (ExitCode.FAILED, ExitCode.UNREACHABLE)
        assert names_in(tmp_path) == []
        mesh.files["fil_1"] = ("../../a.txt", b"abcdef", b"abcdef")
        await download(api, output, "fil_1", str(tmp_path), replace=False)
        (tmp_path / "_.._a.txt").write_text("mine")
        with pytest.raises(CommandError, match="is there already"):
            await download(api, output, "fil_1", str(tmp_path), replace=False)
        assert (tmp_path / "_.._a.txt").read_text() == "mine"
        await download(api, output, "fil_1", str(tmp_path), replace=True)
        assert (tmp_path / "_.._a.txt").read_text() == "abcdef"
        with pytest.raises(CommandError, match="cannot be written"):
            await download(api, output, "fil_1", str(tmp_path / "none" / "a"), replace=False)


async def test_a_bar_is_shown_on_a_terminal_alone(mesh: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "[red]a.txt"
    path.write_bytes(b"x" * 400_000)
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "files",
        "upload",
        str(path),
        cwd=ROOT,
        env=environment({"HARNESS_URL": mesh.url}),
        stdout=asyncio.subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    shown = await asyncio.to_thread(read_all, master)
    assert process.stdout is not None
    assert (await process.stdout.read()).startswith(b"fil_")
    assert await process.wait() == 0
    assert "uploading [red]a.txt" in shown
    assert "400.0" in shown


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("Bericht März.pdf", "Bericht März.pdf"),
        ("../../etc/passwd", "_.._etc_passwd"),
        (".bashrc", "bashrc"),
        ("-rf", "rf"),
        ("~root", "root"),
        ("C:\\x\x1b[31m\u202egpj.exe", "C__x_[31m_gpj.exe"),
        ("..", "fil_1"),
        ("", "fil_1"),
        ("ä" * 4096 + ".txt", "ä" * 98 + ".txt"),
        ("a." + "b" * 300, "a." + "b" * 198),
    ],
)
async def test_a_name_from_elsewhere_is_safe_here(name: str, local: str) -> None:
    assert local_name(name, "fil_1") == local


async def command(who: dict[str, str], *arguments: str, stdin: bytes = b"") -> Ended:
    """The command, run by somebody."""
    url, token, subject = who["HARNESS_URL"], who["HARNESS_TOKEN"], who["HARNESS_SUBJECT"]
    return await harness(*arguments, stdin=stdin, HARNESS_URL=url, HARNESS_TOKEN=token, HARNESS_SUBJECT=subject)


async def files_of(who: dict[str, str]) -> list[dict[str, Any]]:
    result: Ended = await command(who, "files", "list", "--json")
    files: list[dict[str, Any]] = result.document["files"]
    return files


def read_all(master: int) -> str:
    """What a terminal showed, until nobody has it open."""
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            piece = b""
        if not piece:
            os.close(master)
            return shown.decode()
        shown += piece
