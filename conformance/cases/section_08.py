"""Section 8: the files that come with a message, and limits of the input."""

import asyncio
import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.cases.registry import case
from conformance.failure import Broken, CannotExpressError, NotApplicableError, expect
from conformance.kit import Kit, plain
from conformance.plane.binding import Binding
from conformance.plane.broker import ECHO, Succeed
from conformance.plane.file_samples import SAMPLES, made, mark_of
from conformance.plane.files import AUDIENCE, BROKEN, CHUNK_BYTES, CLOSED, GONE, GivenFile, RunFiles
from conformance.plane.run import Run, kind, text_of
from conformance.scenario import CallTool, Say, TellFiles
from harness.common.v1 import error_pb2

MIB = 1024 * 1024
IMAGES, DOCUMENTS = "input.images", "input.documents"
# Beyond it a limit is not tried out.
MAX_TRIED_BYTES = 8 * MIB
MAX_FILES_OF_A_TURN = 32
PIECES_BYTES = 2 * CHUNK_BYTES + 1234
REFUSALS = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*/(\*|[a-z0-9][a-z0-9.+-]*)")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim says that it takes; None where it says nothing usable."""

    key: str
    max_files: int | None
    max_bytes: int | None
    media_types: tuple[str, ...] | None

    def takes(self, media_type: str) -> bool:
        """Whether files of this type are taken."""
        family = f"{media_type.partition('/')[0]}/*"
        return self.media_types is None or media_type in self.media_types or family in self.media_types

    @property
    def samples(self) -> list[str]:
        """Media types that it takes and the kit has an example of. Raises CannotExpressError if there is none."""
        images = self.key == IMAGES
        found = [each for each in SAMPLES if each.startswith("image/") == images and self.takes(each)]
        if not found:
            raise CannotExpressError(f"The kit has no example of what {self.key} takes: {', '.join(SAMPLES)}.")
        return found

    def sample(self, size: int = 0, **more: Any) -> GivenFile:
        """A file that is taken, as large as asked for or, where that is too large, allowed."""
        most = size if self.max_bytes is None else min(size, self.max_bytes)
        return made(self.samples[0], most, **more)


def _claim(kit: Kit, key: str) -> Claim:
    given = plain(kit.descriptor.capabilities[key].constraints)
    types: object = given.get("media_types")
    listed = tuple(str(each) for each in types) if isinstance(types, list) and types else None
    return Claim(key, _whole(given.get("max_files")), _whole(given.get("max_bytes")), listed)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, float) and value >= 1 and value % 1 == 0 else None


def _claims(kit: Kit) -> list[Claim]:
    """Documents before images: what is text can be looked at more closely."""
    return [_claim(kit, key) for key in (DOCUMENTS, IMAGES) if kit.claims(key)]


def _told(run: Run) -> list[str]:
    return _DIGEST.findall(text_of(run.drafts))


async def _given(kit: Kit, binding: Binding, files: Sequence[GivenFile]) -> Run:
    """A run whose model tells of its files, ended; its state committed."""
    run = binding.run(kit.message((TellFiles(),)), files=files)
    await run.play()
    return run


def _expect_all(run: Run, files: Sequence[GivenFile], what: str) -> None:
    run.expect_end("run_completed")
    told, wanted = _told(run), [file.digest for file in files]
    if sorted(told) == sorted(wanted):
        expect(told == wanted, f"{what}: the files reached the model in another order than they were given in.")
    missing = sum(digest not in told for digest in wanted)
    expect(
        told == wanted, f"{what}: the model got {len(told)} files, of {len(wanted)} given {missing} not as they are."
    )


def _expect_large(run: Run, file: GivenFile, key: str) -> None:
    """As `_expect_all` of one file; but a large image may reach the model in another encoding, which shows nothing but that there was one."""
    what = f"A file of {len(file.content)} bytes for {key}"
    if key != IMAGES:
        _expect_all(run, [file], what)
        return
    run.expect_end("run_completed")
    told = _told(run)
    expect(len(told) == 1, f"{what}: the model got {len(told)} files.")


def _faults(run: Run) -> list[str]:
    """What was wrong with the run's calls of facades."""
    found = [f"{call.method} with {call.fault}" for grant in run.grants.values() for call in grant.calls if call.fault]
    grant = run.grants.get(AUDIENCE)
    behind: RunFiles | None = None if grant is None else grant.behind
    return [*found, *(f"ReadFile of {read.fault}" for read in (behind.reads if behind else ()) if read.fault)]


def _shown(run: Run, *secrets: bytes) -> bool:
    """Whether any of these stands in what the target sent of a run, as it is or in base64."""
    sent = b"\n".join(draft.SerializeToString() for draft in run.drafts)
    wanted = [form for secret in secrets for form in (secret, *_in_base64(secret))]
    return any(form in sent for form in wanted)


def _in_base64(secret: bytes) -> list[bytes]:
    # Wherever it begins among the triples: what stands for it alone, without its neighbours.
    return [base64.b64encode(b"\0" * before + secret)[4 if before else 0 : -4] for before in range(3)]


# --- a message alone ---


@case("R8.1", "a message at its bound")
async def r8_1_largest_message(kit: Kit) -> None:
    binding = await kit.binding()
    message = kit.message((Say("taken"),))
    # Space after it changes nothing of what it means.
    run = binding.run(message + " " * (MIB - len(message.encode())))
    expect(text_of(await run.play()) == "taken", "A message of 1 MiB did not do what a shorter one does.")
    run.expect_end("run_completed")


@case("R8.1", "a message over its bound")
async def r8_1_too_large(kit: Kit) -> None:
    binding = await kit.binding()
    message = kit.message((Say("must not be said"),))
    run = binding.run(message + " " * (MIB + 1 - len(message.encode())))
    refusal = await kit.target.refused("StartRun", run.start().call.read())
    allowed = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    expect(refusal.code in allowed, f"A message over 1 MiB was refused with {refusal}.")
    unknown = await kit.target.refused("AttachRun", run.attach().call.read())
    expect(unknown.code == "NOT_FOUND", f"AttachRun of the refused run was refused with {unknown}, not with NOT_FOUND.")


# --- what reaches the model ---


async def _each_type(kit: Kit, key: str) -> None:
    binding = await kit.binding()
    types = _claim(kit, key).samples
    for media_type in types:
        file = made(media_type)
        _expect_all(await _given(kit, binding, [file]), [file], f"A file of {media_type}")
    kit.figures["media_types"] = ", ".join(types)


async def _in_pieces(kit: Kit, key: str) -> None:
    binding = await kit.binding()
    file = _claim(kit, key).sample(PIECES_BYTES)
    kit.figures["bytes"] = len(file.content)
    _expect_large(await _given(kit, binding, [file]), file, key)


@case("R8.2", "an image of each media type")
async def r8_2_media_types(kit: Kit) -> None:
    await _each_type(kit, IMAGES)


@case("R8.2", "an image in several pieces")
async def r8_2_pieces(kit: Kit) -> None:
    await _in_pieces(kit, IMAGES)


@case("R8.3", "a document of each media type")
async def r8_3_media_types(kit: Kit) -> None:
    await _each_type(kit, DOCUMENTS)


@case("R8.3", "a document in several pieces")
async def r8_3_pieces(kit: Kit) -> None:
    await _in_pieces(kit, DOCUMENTS)


@case("R8.4", "several files")
async def r8_4_order(kit: Kit) -> None:
    binding = await kit.binding()
    files: list[GivenFile] = []
    for claim in _claims(kit):
        room = min(claim.max_files or 3, 3)
        for place in range(room):
            # In between those of the other kind.
            files.insert(min(2 * place + 1, len(files)), claim.sample())
    if len(files) < 2:
        raise NotApplicableError("The target takes one file a turn.")
    _expect_all(await _given(kit, binding, files), files, f"A turn with {len(files)} files")


# --- how they are read ---


@case("R8.5", "fence, token and files of a read")
async def r8_5_through_the_facade(kit: Kit) -> None:
    binding = await kit.binding()
    binding.tools.answers = {ECHO: Succeed("heard")}
    claim = _claims(kit)[0]
    steps = (CallTool("c1", ECHO, {"text": "x"}),) if kit.claims("tool.builtin") else ()
    first = binding.run(kit.message((*steps, TellFiles())), files=[claim.sample()])
    await first.play()
    first.expect_end("run_completed")
    read: RunFiles = first.grants[AUDIENCE].behind
    expect(bool(read.reads), "The model is said to have got a file, and nobody read it through ReadFile.")
    second = await _given(kit, binding, [claim.sample()])
    before = [len(run.grants[AUDIENCE].calls) for run in (first, second)]
    third = binding.run(kit.message((Say("no files"),)))
    await third.play()
    third.expect_end("run_completed")
    for run in (first, second, third):
        faults = _faults(run)
        expect(not faults, f"A facade was called: {faults[0] if faults else ''}.")
    second.expect_end("run_completed")
    after = [len(run.grants[AUDIENCE].calls) for run in (first, second)]
    expect(after == before, "A turn without files read those of an earlier one.")
    own = {run.fence.run_id for run in (first, second, third)}
    strange = [call for call in kit.setting.facades.grants.strangers if call.fence.run_id in own]
    expect(not strange, f"{strange[0].method if strange else ''} was called with a token that is not the run's.")


# --- what cannot be read ---


def _expect_without(run: Run, files: Sequence[GivenFile], what: str, categories: Sequence[int] = ()) -> None:
    """A run that ended truthfully although these files could not be given to the model; `categories`: how it may fail, any but internal if empty."""
    told = _told(run)
    expect(not {file.digest for file in files} & set(told), f"{what} passed for one that was given to the model.")
    if kind(run.last) == "run_failed":
        failed = run.last.payload.run_failed
        name = error_pb2.ErrorCategory.Name(failed.category)
        allowed = failed.category in categories if categories else failed.category != error_pb2.ERROR_CATEGORY_INTERNAL
        expect(allowed, f"{what}: the run failed with {name}, code {failed.code!r}.")
        expect(bool(failed.code and failed.message), f"{what}: the run failed and does not say why.")
        return
    run.expect_end("run_completed")
    warned = any(kind(draft) == "warning" for draft in run.drafts)
    expect(warned, f"{what}: the run went on as if nothing were missing, without a warning.")


async def _unreadable(kit: Kit, what: str, **becomes: Any) -> None:
    binding = await kit.binding()
    claim, words = _claims(kit)[0], kit.target.canaries.plant("facade-status")
    file = claim.sample(words=words, **becomes)
    run = await _given(kit, binding, [file])
    expect(not _told(run), f"{what} passed for one that was given to the model.")
    _expect_without(run, [file], what)
    expect(not _shown(run, words.encode()), f"{what}: a draft tells what the facade said.")
    mark = mark_of(file).encode()
    expect(not _shown(run, mark), f"{what}: a draft tells of its content.")
    again = binding.run(kit.message((Say("still here"),)))
    await again.play()
    again.expect_end("run_completed")


@case("R8.6", "a file that is gone")
async def r8_6_gone(kit: Kit) -> None:
    await _unreadable(kit, "A file that is gone", refused=GONE)


@case("R8.6", "a file that cannot be read now")
async def r8_6_broken(kit: Kit) -> None:
    await _unreadable(kit, "A file that cannot be read", refused=BROKEN)


@case("R8.6", "a facade that takes the token no more")
async def r8_6_closed(kit: Kit) -> None:
    await _unreadable(kit, "A file that the facade does not open", refused=CLOSED)


@case("R8.6", "a file damaged on its way")
async def r8_6_damaged(kit: Kit) -> None:
    await _unreadable(kit, "A file that was damaged on its way", damaged=True)


@case("R8.6", "a read that is cut off")
async def r8_6_cut_off(kit: Kit) -> None:
    binding = await kit.binding()
    file = _claims(kit)[0].sample(PIECES_BYTES, cut_after=CHUNK_BYTES)
    if len(file.content) <= CHUNK_BYTES:
        raise NotApplicableError("The target takes no file that comes in several pieces.")
    run = await _given(kit, binding, [file])
    if kind(run.last) == "run_completed" and _told(run):
        _expect_all(run, [file], "A file whose read was cut off once")
    else:
        _expect_without(run, [file], "A file whose read was cut off")


# --- limits ---


@case("R8.7", "limits of a claim")
async def r8_7_limits(kit: Kit) -> None:
    for claim in _claims(kit):
        for name, value in (("max_files", claim.max_files), ("max_bytes", claim.max_bytes)):
            expect(value is not None, f"{claim.key} states no {name} that is a whole number from 1.")
        types = claim.media_types
        if types is None:
            raise Broken(f"{claim.key} states no media_types.")
        for each in types:
            expect(_MEDIA_TYPE.fullmatch(each) is not None, f"{claim.key} lists {each[:60]!r}, which is no media type.")
            images = each.startswith("image/")
            expect(images == (claim.key == IMAGES), f"{claim.key} lists {each}, which is of the other claim.")


@case("R8.8", "as many files as are allowed")
async def r8_8_most_files(kit: Kit) -> None:
    binding = await kit.binding()
    for claim in _claims(kit):
        files = [claim.sample() for _ in range(min(claim.max_files or 1, MAX_FILES_OF_A_TURN))]
        _expect_all(await _given(kit, binding, files), files, f"{len(files)} files of {claim.key}")


@case("R8.8", "a file as large as is allowed")
async def r8_8_largest(kit: Kit) -> None:
    binding = await kit.binding()
    for claim in _claims(kit):
        size = min(claim.max_bytes or 0, MAX_TRIED_BYTES)
        # One number cannot say that text fills a model sooner than what is looked at page by page.
        for media_type in reversed(claim.samples):
            file = made(media_type, size)
            run = await _given(kit, binding, [file])
            if kind(run.last) == "run_completed" and _told(run):
                break
        else:
            raise Broken(f"No file of {size} bytes for {claim.key} was given to the model, of whatever media type.")
        _expect_large(run, file, claim.key)


async def _beyond(kit: Kit, files: Sequence[GivenFile], most: int, what: str) -> None:
    """A turn with more than the claim allows: `most` of the files, at most, reach the model."""
    binding = await kit.binding()
    run = binding.run(kit.message((TellFiles(),)), files=files)
    stream = run.start()
    while await stream.read() is not None:
        pass
    kit.setting.observations.look(run, stream)
    if stream.refusal is not None and not stream.drafts:
        expect(stream.refusal.code in REFUSALS, f"{what} was refused with {stream.refusal}.")
        return
    run.drafts = stream.drafts
    await run.ack(stream.last_offset)
    run.commit()
    beyond = [file for file in files if file.digest not in _told(run)[:most]]
    _expect_without(run, beyond, what, (error_pb2.ERROR_CATEGORY_CONFIGURATION,))


@case("R8.8", "a file that is too large")
async def r8_8_too_large(kit: Kit) -> None:
    for claim in _claims(kit):
        if claim.max_bytes is not None and claim.max_bytes < MAX_TRIED_BYTES:
            file = made(claim.samples[0], claim.max_bytes + 1)
            await _beyond(kit, [file], 0, f"A file of {len(file.content)} bytes for {claim.key}")


@case("R8.8", "too many files")
async def r8_8_too_many(kit: Kit) -> None:
    for claim in _claims(kit):
        if claim.max_files is not None and claim.max_files < MAX_FILES_OF_A_TURN:
            files = [claim.sample() for _ in range(claim.max_files + 1)]
            await _beyond(kit, files, claim.max_files, f"A turn with {len(files)} files for {claim.key}")


@case("R8.8", "a file of another media type")
async def r8_8_other_type(kit: Kit) -> None:
    taken = _claims(kit)
    for media_type in ("application/x-certification-kit", "image/x-certification-kit"):
        if not any(claim.takes(media_type) for claim in taken):
            await _beyond(kit, [made(media_type)], 0, f"A file of {media_type}")


# --- what is kept apart ---


@case("R8.9", "content that the model does not speak of")
async def r8_9_not_shown(kit: Kit) -> None:
    binding = await kit.binding()
    files = [claim.sample() for claim in _claims(kit)]
    run = binding.run(kit.message((Say("I say nothing of it"),)), files=files)
    await run.play()
    run.expect_end("run_completed")
    expect(not _shown(run, *(mark_of(file).encode() for file in files)), "A draft tells content of a file.")


@case("R8.10", "two bindings with files of their own")
async def r8_10_apart(kit: Kit) -> None:
    claim = _claims(kit)[0]
    one, other = await kit.binding(), await kit.binding()
    for _ in range(2):
        first, second = claim.sample(), claim.sample()
        runs = await asyncio.gather(_given(kit, one, [first]), _given(kit, other, [second]))
        for run, file in zip(runs, (first, second), strict=True):
            _expect_all(run, [file], "A file beside another binding's")
            faults = _faults(run)
            expect(not faults, f"A facade was called: {faults[0] if faults else ''}.")
