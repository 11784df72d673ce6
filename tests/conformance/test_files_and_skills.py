"""The kit's file facade, and what the reference harness makes of files and skills (certification, sections 8 and 9)."""

import json

import grpc
import grpc.aio
import pytest

from adapters.reference import skills
from adapters.sdk.errors import ConfigurationError
from conformance.certification import Certifier, Options
from conformance.drivers.reference import ReferenceDriver
from conformance.kit import Kit
from conformance.plane.file_samples import SAMPLES, made, mark_of
from conformance.plane.files import AUDIENCE, CHUNK_BYTES, UNKNOWN_FILE
from conformance.plane.run import kinds, text_of
from harness.files.v1 import file_service_pb2, file_service_pb2_grpc
from harness.runtime.v1 import runtime_pb2
from tests.conformance.conftest import hosted


@pytest.fixture
async def kit():
    async with hosted() as address, Certifier(Options(address)) as certifier:
        kit = Kit(certifier.setting, ReferenceDriver(), None, None)
        yield kit
        await kit.release()


def script(*steps) -> str:
    return json.dumps({"script": list(steps)})


async def play(kit, message, *files):
    run = (await kit.binding()).run(message, files=files)
    await run.play()
    return run


async def failure(kit, message, *files):
    run = await play(kit, message, *files)
    return run.expect_end("run_failed").payload.run_failed.code


# --- the kit's facade ---


@pytest.fixture
async def facade(kit):
    async with grpc.aio.insecure_channel(kit.setting.facades.address) as channel:
        yield file_service_pb2_grpc.FileServiceStub(channel)


async def read(facade, run, file, *, audience=AUDIENCE, offset=0, **fence):
    """All of a file, or the status."""
    token = next(each.value for each in run.input.tokens if each.audience == audience)
    request = file_service_pb2.ReadFileRequest(fence=run.fence, file_id=file.file_id, offset=offset)
    for name, value in fence.items():
        setattr(request.fence, name, value)
    try:
        pieces = [piece async for piece in facade.ReadFile(request, metadata=(("authorization", f"Bearer {token}"),))]
    except grpc.aio.AioRpcError as error:
        return error.code()
    assert all(len(piece.chunk) <= CHUNK_BYTES for piece in pieces)
    assert [bool(piece.sha256) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    return b"".join(piece.chunk for piece in pieces), pieces[-1].sha256


async def test_the_facade_gives_a_run_its_own_files_and_notes_what_else_is_tried(kit, facade):
    binding = await kit.binding()
    own, foreign = made("text/plain", 2 * CHUNK_BYTES + 5), made("text/plain")
    run, other = binding.run("x", files=[own]), binding.run("y", files=[foreign])
    assert await read(facade, run, own) == (own.content, own.digest)
    assert await read(facade, run, own, offset=CHUNK_BYTES + 1) == (own.content[CHUNK_BYTES + 1 :], own.digest)
    assert await read(facade, run, own, offset=len(own.content) + 7) == (b"", own.digest)
    assert await read(facade, run, foreign) is grpc.StatusCode.NOT_FOUND
    assert run.grants[AUDIENCE].behind.reads[-1].fault == UNKNOWN_FILE
    assert await read(facade, run, own, turn=other.fence.turn) is grpc.StatusCode.FAILED_PRECONDITION
    assert run.grants[AUDIENCE].calls[-1].fault == "the fence's turn"
    assert await read(facade, run, own, audience="state") is grpc.StatusCode.FAILED_PRECONDITION
    assert run.grants["state"].calls[-1].fault == "a token of audience 'state'"
    assert not other.grants[AUDIENCE].calls


async def test_a_run_without_files_gets_no_token_for_them(kit):
    run = (await kit.binding()).run("x")
    assert {token.audience for token in run.input.tokens} == {"state", "tool"}


@pytest.mark.parametrize("media_type", SAMPLES)
def test_an_example_is_as_large_as_asked_for_and_carries_its_mark(media_type):
    assert [len(made(media_type, size).content) for size in (1000, 100_001)] == [1000, 100_001]
    one, another = made(media_type), made(media_type)
    assert mark_of(one) != mark_of(another)
    assert mark_of(one).encode() in one.content


# --- files in the reference harness ---


async def test_steps_tell_the_digest_of_each_file(kit):
    files = [made("image/gif"), made("text/csv"), made("image/gif")]
    inner = {"subagent": {"agent_id": "a", "script": [{"file": 3}]}}
    run = await play(kit, script({"file": 2}, inner), *files)
    run.expect_end("run_completed")
    assert text_of(run.drafts) == files[1].digest + files[2].digest
    assert await failure(kit, script({"text": "x"}, {"file": 4}), *files) == "step_invalid"
    assert await failure(kit, script({"file": 0}), *files) == "message_invalid"


async def test_files_are_read_before_anything_is_said(kit):
    for message in ("hello", '{"n": 3}', script({"text": "x"})):
        file = made("text/plain")
        run = await play(kit, message, file)
        assert [each.file_id for each in run.grants[AUDIENCE].behind.reads] == [file.file_id]
    run = await play(kit, script({"text": "x"}), made("text/plain", refused=(grpc.StatusCode.NOT_FOUND, "not_found")))
    assert kinds(run.drafts) == ["run_failed"]


async def test_what_the_descriptor_does_not_allow_is_refused_before_anything_is_read(kit):
    for code, files in (
        ("file_media_type", [made("text/plain"), made("video/mp4")]),
        ("file_too_large", [made("text/plain"), made("text/plain", 4 * 1024 * 1024 + 1)]),
        ("too_many_files", [made("image/png") for _ in range(9)]),
    ):
        run = await play(kit, script({"files": True}), *files)
        assert run.expect_end("run_failed").payload.run_failed.code == code
        assert run.grants[AUDIENCE].behind.reads == []
    mixed = [made("image/png") for _ in range(8)] + [made("text/plain") for _ in range(8)]
    run = await play(kit, script({"files": True}), *mixed)
    assert text_of(run.drafts).split() == [file.digest for file in mixed]


async def test_a_resumed_turn_reads_its_files_where_a_step_asks_for_them(kit):
    binding, file = await kit.binding(), made("text/plain")
    asks = {"interrupt": {"form": [{"name": "a"}]}}
    first = binding.run(json.dumps({"scripts": [[asks], [{"files": True}]]}), files=[file])
    await first.play()
    interrupt_id = first.expect_end("run_interrupted").payload.run_interrupted.interrupt_id
    decision = runtime_pb2.ResumeDecision(interrupt_id=interrupt_id, revision=1, dismiss=True)
    resumed = await binding.resume(first, decision, files=[file])
    assert text_of(resumed.drafts) == file.digest
    assert len(resumed.grants[AUDIENCE].behind.reads) == 1


# --- skills in the reference harness ---


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ([], "skills must"),
        ({"tea": "boil"}, "skills.tea"),
        ({"tea": {}}, "skills.tea"),
        ({"tea": {"text": "boil", "more": 1}}, "skills.tea"),
        ({"tea": {"text": "boil", "blocked": True}}, "skills.tea"),
        ({"tea": {"text": "x" * 16_385}}, "skills.tea"),
        ({str(number): {"text": ""} for number in range(65)}, "at most 64"),
    ],
)
def test_a_setting_that_gives_no_skills_is_refused(setting, where):
    with pytest.raises(ConfigurationError, match=where) as refused:
        skills.skills_of_profile({"skills": setting})
    assert refused.value.code == "profile_invalid"


def test_an_agent_gets_the_skills_that_it_names_or_is_refused():
    known = skills.skills_of_profile({"skills": {"tea": {"text": "boil"}, "gin": {"text": "mix", "blocked": "Dry."}}})
    assert skills.skills_of_agent(["tea"], known) == {"tea": "boil"}
    assert skills.skills_of_agent([], known) == {}
    found = [(issue.path, issue.code) for issue in skills.issues(["tea", "gin", "ale"], known)]
    assert found == [("skills[1]", "skill_blocked"), ("skills[2]", "skill_unknown")]
    for wanted, code in ((["tea", "gin"], "skill_blocked"), (["ale"], "skill_unknown")):
        with pytest.raises(ConfigurationError) as refused:
            skills.skills_of_agent(wanted, known)
        assert refused.value.code == code


async def test_a_skill_that_the_agent_does_not_name_is_none_of_its(kit):
    assert await failure(kit, script({"skill": "kit-tea"})) == "skill_unknown"
