"""What reaches a terminal."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cli.text import json_line, safe_line, safe_text

STEERING = set("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ANY_TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from(["\x1b", "\x9b", "\r", "\n", "\x7f", "\u202e", "\ud800"]))
)


def steers(text: str, allowed: str) -> bool:
    return any((unicodedata.category(c) in ("Cc", "Cs") and c not in allowed) or c in STEERING for c in text)


@given(ANY_TEXT)
def test_text_of_others_cannot_steer_the_terminal(text: str) -> None:
    assert not steers(safe_text(text), "\t\n")
    assert not steers(safe_line(text), "")


@given(ANY_TEXT)
def test_json_is_the_same_value_and_cannot_steer_either(text: str) -> None:
    line = json_line({"text": text})
    assert json.loads(line) == {"text": text}
    assert not steers(line, "")


def test_escape_sequences_are_shown_not_obeyed() -> None:
    assert safe_text("a\x1b]0;title\x07b\x9b31m\r\nc\rd") == "a\ufffd]0;title\ufffdb\ufffd31m\nc\nd"
    assert safe_line("a\nb  c" + "x" * 100, 8) == "a b cxx…"
