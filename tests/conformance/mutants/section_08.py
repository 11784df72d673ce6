"""Mutants of section 8, files and limits, and of section 9, skills."""

import hashlib
from collections.abc import Callable
from typing import Any

from harness.runtime.v1 import runtime_pb2
from tests.conformance.mutants.mutant import STREAMS, Memory, Section, copied
from tests.conformance.mutants.wire import Call, Mutation, Responses

SECTION = Section(8)
SKILLS = Section(9)


@SECTION.request("R8.1", "Cuts a message that is too long.", "StartRun")
def _(request: Any, memory: Memory) -> None:
    request.turn.message = request.turn.message.encode()[: 1024 * 1024].decode(errors="ignore")


async def _content(call: Call, *, change: Callable[[bytes], bytes]) -> Responses:
    """The responses of a read with other content, and its digest."""
    pieces = [response async for response in call.proceed()]
    content = change(b"".join(piece.chunk for piece in pieces))
    for piece in pieces:
        piece.chunk = content[piece.offset : piece.offset + len(piece.chunk)]
        piece.sha256 = hashlib.sha256(content).hexdigest() if piece.sha256 else ""
        yield piece


def _is_image(content: bytes) -> bool:
    return content.startswith((b"\x89PNG", b"GIF8"))


@SECTION.stream("R8.2", "Gives the model images with another last byte.", "ReadFile")
async def _(call: Call, memory: Memory) -> Any:
    async for piece in _content(call, change=lambda content: content[:-1] + b"~" if _is_image(content) else content):
        yield piece


@SECTION.stream("R8.3", "Gives the model documents in capital letters.", "ReadFile")
async def _(call: Call, memory: Memory) -> Any:
    async for piece in _content(call, change=lambda content: content if _is_image(content) else content.upper()):
        yield piece


@SECTION.request("R8.4", "Gives the model the last file first.", "StartRun")
def _(request: Any, memory: Memory) -> None:
    files = [copied(file) for file in request.turn.files]
    del request.turn.files[:]
    request.turn.files.extend(reversed(files))


@SECTION.request("R8.5", "Reads the files of the turn before again.", "StartRun")
def _(request: Any, memory: Memory) -> None:
    given: list[runtime_pb2.FileRef] = [copied(file) for file in request.turn.files]
    if given:
        request.turn.files.extend(memory.kept.get(request.fence.binding_id, []))
    memory.kept[request.fence.binding_id] = given


@SECTION.stream("R8.6", "Believes whatever comes of a file.", "ReadFile")
async def _(call: Call, memory: Memory) -> Any:
    async for piece in _content(call, change=lambda content: content):
        yield piece


@SECTION.response("R8.7", "Claims files and states no limits.", "GetDescriptor")
def _(response: Any, memory: Memory) -> None:
    for key in ("input.images", "input.documents"):
        response.descriptor.capabilities[key].ClearField("constraints")


@SECTION.request("R8.8", "Takes files of every type for plain text.", "StartRun")
def _(request: Any, memory: Memory) -> None:
    for file in request.turn.files:
        file.media_type = "text/plain"


@SECTION.mutation("R8.9", "Warns of what it reads, in its words.")
class TellsContent(Mutation):
    def __init__(self) -> None:
        self._read: dict[str, bytes] = {}

    async def stream(self, call: Call) -> Responses:
        responses: Any = call.proceed()
        async for response in responses:
            if call.method == "ReadFile":
                self._read.setdefault(call.run_id, response.chunk)
            drafts: Any = response.batch.drafts if call.method in STREAMS else []
            if call.run_id in self._read and drafts and drafts[-1].payload.HasField("run_completed"):
                completed = copied(drafts[-1])
                said = self._read[call.run_id][:500].decode(errors="ignore")
                drafts[-1].ClearField("pending_head")
                drafts[-1].payload.warning.code, drafts[-1].payload.warning.message = "file_read", f"Read: {said}"
                drafts.append(completed)
            yield response


@SECTION.stream("R8.10", "Gives every conversation what another one read before.", "ReadFile")
async def _(call: Call, memory: Memory) -> Any:
    pieces = [response async for response in call.proceed()]
    kept: tuple[str, list[Any]] = memory.kept.setdefault(pieces[0].size, (call.request.fence.binding_id, pieces))
    for piece in kept[1] if kept[0] != call.request.fence.binding_id else pieces:
        yield piece


# --- skills ---


def _given(request: Any) -> dict[str, Any]:
    """The skills of the profile, by id."""
    return dict(request.context.profile_settings["skills"])


def _leave(request: Any, keep: Callable[[str], bool]) -> None:
    """Leaves these of the agent's skills."""
    kept = [skill for skill in request.context.blueprint.skills if keep(skill)]
    del request.context.blueprint.skills[:]
    request.context.blueprint.skills.extend(kept)


@SKILLS.request("R9.1", "Forgets the agent's skills.", "CreateRuntime")
def _(request: Any, memory: Memory) -> None:
    _leave(request, lambda skill: False)


@SKILLS.response("R9.2", "Finds no fault with any skill.", "Evaluate")
def _(response: Any, memory: Memory) -> None:
    del response.issues[:]


@SKILLS.request("R9.3", "Leaves out a skill that is missing, and says nothing.", "CreateRuntime")
def _(request: Any, memory: Memory) -> None:
    given = _given(request)
    _leave(request, lambda skill: skill in given)


@SKILLS.request("R9.4", "Lets an agent use a skill that is blocked.", "CreateRuntime")
def _(request: Any, memory: Memory) -> None:
    for skill in _given(request):
        given = request.context.profile_settings["skills"][skill]
        if "blocked" in given:
            given["blocked"] = ""


@SKILLS.request("R9.5", "Gives every agent all skills of the profile.", "CreateRuntime")
def _(request: Any, memory: Memory) -> None:
    allowed = [skill for skill, given in _given(request).items() if "blocked" not in given]
    if all(skill in allowed for skill in request.context.blueprint.skills):
        _leave(request, lambda skill: False)
        request.context.blueprint.skills.extend(allowed)
