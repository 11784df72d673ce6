"""Files of a turn: what the model reads of them, what is left out and said to be, and that they stay in the conversation."""

import base64

import pytest

from adapters.claude_agent_sdk import runtime
from adapters.claude_agent_sdk.attachments import MAX_DOCUMENT_BYTES, MAX_FILES, MAX_TEXT_BYTES, content_of
from conformance.plane.run import kinds, text_of
from harness.runtime.v1 import runtime_pb2
from tests.adapters.claude.model import text
from tests.adapters.claude.pictures import png
from tests.adapters.claude.rig import Rig

PDF = b"%PDF-1.4\n" + b"x" * 2_000_000


class Files:
    """Contents by file."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents
        self.read_of: list[str] = []

    async def read(self, file: runtime_pb2.FileRef) -> bytes:
        """The content of one."""
        self.read_of.append(file.file_id)
        return self.contents[file.file_id]


def refs(*files: tuple[str, str, int]) -> list[runtime_pb2.FileRef]:
    return [runtime_pb2.FileRef(file_id=one, name=f"{one}.x", media_type=kind, size=size) for one, kind, size in files]


async def test_i35_what_does_not_fit_is_left_out_and_said():
    files = Files(a=png(), b=b"no picture", c=b"\xff\xfe", d=b"", e="größe".encode(), f=b"x" * (MAX_DOCUMENT_BYTES + 1))
    wanted = refs(
        ("a", "image/png", 0),
        ("b", "image/png", 10),
        ("c", "text/plain", 2),
        ("d", "text/csv", 0),
        ("e", "Text/Markdown", 6),
        ("f", "application/pdf", 5),
        ("g", "application/pdf", MAX_DOCUMENT_BYTES + 1),
        ("h", "video/mp4", 5),
        ("i", "", 0),
        ("j", "text/plain", MAX_TEXT_BYTES + 1),
    )
    blocks, warnings = await content_of("look", wanted, files)
    assert [block["type"] for block in blocks] == ["image", "document", "text"]
    assert base64.b64decode(blocks[0]["source"]["data"]) == png()
    assert blocks[1]["source"]["data"] == "größe"
    told = [(one.payload.warning.details["file_id"], one.payload.warning.details["reason"]) for one in warnings]
    assert told == [
        ("b", "content"),
        ("c", "content"),
        ("d", "empty"),
        ("f", "size"),
        ("g", "size"),
        ("h", "media_type"),
        # All that is known of a file that its owner has deleted is its id.
        ("i", "gone"),
        ("j", "size"),
    ]
    assert files.read_of == ["a", "b", "c", "d", "e", "f"], "what is known to be too large, or of no use, is not read"

    many = Files(**{f"n{number}": b"x" * 1_900_000 for number in range(9)})
    wanted = refs(*((f"n{number}", "text/plain", 0) for number in range(9)))
    blocks, warnings = await content_of("", wanted, many)
    assert len(blocks) == 6, "together they are bounded"
    assert [one.payload.warning.details["reason"] for one in warnings] == ["total"] * 3
    small = Files(**{f"n{number}": b"x" for number in range(9)})
    blocks, warnings = await content_of("", wanted, small)
    assert len(blocks) == MAX_FILES
    assert [one.payload.warning.details["reason"] for one in warnings] == ["count"]


async def test_files_reach_the_model_and_stay_in_the_conversation(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    files = Files(a=png(), b=PDF, c=b"some text")

    async def read(turn):
        return await content_of(turn.message, turn.files, files) if turn.files else (turn.message, [])

    monkeypatch.setattr(runtime, "content_of_turn", read)
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script([text("I see.")])
    run = conversation.run("look @/etc/hostname")
    run.input.files.extend(
        refs(("a", "image/png", 0), ("b", "application/pdf", 0), ("c", "text/plain", 0), ("d", "a/b", 0))
    )
    drafts = await run.play()
    assert kinds(drafts)[0] == "warning"
    assert text_of(drafts) == "I see."
    content = rig.model.requests[-1]["messages"][0]["content"]
    # The program adds where it keeps a copy of the picture, in the turn's own folder.
    assert [block["type"] for block in content] == ["image", "document", "document", "text", "text"]
    assert base64.b64decode(content[1]["source"]["data"]) == PDF
    assert content[3]["text"].strip() == "look @/etc/hostname"
    assert content[4]["text"].startswith("[Image: source: ")
    # The document is larger than a part of the state, and comes back whole.
    await conversation.cleanup()
    await conversation.replace(await rig.another_host())
    await conversation.say("and now?")
    assert rig.model.requests[-1]["messages"][0]["content"] == content
