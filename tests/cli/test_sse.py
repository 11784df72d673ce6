"""The parser of event streams, against an independent reading of the whole text."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.sse import EventStreamParser, Frame, FrameTooLarge

ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
PIECES = st.sampled_from(
    [
        b"data",
        b"event",
        b"id",
        b"retry",
        b":",
        b" ",
        b"x",
        b"12",
        b"\0",
        b"\n",
        b"\r",
        b"\r\n",
        b"\xc3\xa4",
        b"\xff",
        b"\xef\xbb\xbf",
    ]
)


def cut(text: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def parse(chunks: list[bytes]) -> list[Frame]:
    parser = EventStreamParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def read_whole(text: bytes) -> list[Frame]:
    """What the standard says, for a text that is there as a whole."""
    frames, last_id, kind, data = [], "", "", None
    complete = re.findall(rb"([^\r\n]*)(?:\r\n|\r|\n)", text.removeprefix(b"\xef\xbb\xbf"))
    for raw in complete:
        line = raw.decode("utf-8", "replace")
        if line == "":
            if data is not None:
                frames.append(Frame(last_id, kind or "message", data[:-1]))
            kind, data = "", None
            continue
        match = re.fullmatch(r"([^:]*)(?::( ?)(.*))?", line, re.DOTALL)
        assert match
        name, value = match[1], match[3] or ""
        if name == "data":
            data = (data or "") + value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
    return frames


@given(st.lists(PIECES, max_size=60).map(b"".join), st.lists(st.integers(0, 200), max_size=12))
def test_any_bytes_in_any_pieces_give_the_frames_of_the_whole(text: bytes, places: list[int]) -> None:
    assert parse(cut(text, places)) == read_whole(text)


LINE = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.tuples(LINE, LINE, st.lists(LINE, min_size=1, max_size=4)), max_size=6),
    st.lists(ENDS, min_size=1, max_size=5),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_what_was_written_is_read_again(
    events: list[tuple[str, str, list[str]]], ends: list[bytes], places: list[int]
) -> None:
    text, expected = b"", []
    for number, (identifier, kind, lines) in enumerate(events):
        end = ends[number % len(ends)]
        rows = [f"id: {identifier}", f": {kind}", f"event: {kind}", *(f"data: {line}" for line in lines), ""]
        text += b"".join(row.encode() + end for row in rows)
        expected.append(Frame(identifier, kind or "message", "\n".join(lines)))
    assert parse(cut(text, places)) == expected


def test_the_last_id_stays_and_comments_are_nothing() -> None:
    text = b": hello\n\nid: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n"
    assert parse([text]) == [Frame("7", "message", "a"), Frame("7", "message", "b"), Frame("", "message", "c")]


def test_a_field_has_its_whole_name() -> None:
    assert parse([b"datax: 1\n data: 2\neventx: e\nidx: 3\ndata: 4\n\n"]) == [Frame("", "message", "4")]


def test_a_line_end_may_come_in_two_halves() -> None:
    assert parse([b"data: a\r", b"\n", b"\r", b"\n"]) == [Frame("", "message", "a")]


def test_an_unfinished_frame_is_no_frame() -> None:
    assert parse([b"data: a\n\ndata: b\n"]) == [Frame("", "message", "a")]


@pytest.mark.parametrize(
    "chunk", [b"data: " + b"x" * 64, b"data: 12345678\n" * 8, b"data: 12345678\n" * 8 + b"\n", b":" + b"x" * 64 + b"\n"]
)
def test_i35_a_frame_without_end_is_refused(chunk: bytes) -> None:
    parser = EventStreamParser(max_frame_bytes=64)
    with pytest.raises(FrameTooLarge):
        parser.feed(chunk)


def test_i35_many_small_pieces_of_one_line_are_bounded() -> None:
    parser = EventStreamParser(max_frame_bytes=64)
    for _ in range(64):
        parser.feed(b"x")
    with pytest.raises(FrameTooLarge):
        parser.feed(b"x")
