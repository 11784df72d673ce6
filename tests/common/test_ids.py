"""Ids: keyed, unambiguous, sortable where promised."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import ids
from services.common.ids import Identity, is_valid_id

KEY = b"identity-key-0123456789"
parts = st.tuples(st.text(), st.text(), st.text(), st.integers(1, 2**31))


@given(parts, parts)
def test_i1_same_tuple_same_id_other_tuple_other_id(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int]
) -> None:
    def replica() -> Identity:
        return Identity(KEY, "local")

    assert replica().binding_id(*one) == replica().binding_id(*one)
    assert (replica().binding_id(*one) == replica().binding_id(*other)) == (one == other)


@given(st.text(), st.text(), st.text())
def test_i1_parts_do_not_run_together(a: str, b: str, c: str) -> None:
    identity = Identity(KEY, "local")
    assert identity.binding_id(a + b, c, "x", 1) == identity.binding_id(a, b + c, "x", 1) or b != ""
    if b:
        assert identity.binding_id(a + b, c, "x", 1) != identity.binding_id(a, b + c, "x", 1)


def test_i1_key_and_environment_and_kind_are_part_of_it() -> None:
    made = {
        Identity(KEY, "local").binding_id("o", "a", "c", 1),
        Identity(KEY, "prod").binding_id("o", "a", "c", 1),
        Identity(KEY + b"x", "local").binding_id("o", "a", "c", 1),
        Identity(KEY, "local").binding_id("o", "a", "c", 2),
    }
    assert len(made) == 4
    identity = Identity(KEY, "local")
    assert identity.owner_digest("o")[4:] != identity.conversation_key("o", "a", "c")[4:]


def test_i1_no_raw_identity_in_an_id() -> None:
    identity = Identity(KEY, "local")
    for made in (
        identity.binding_id("alice", "agent", "conv", 1),
        identity.owner_digest("alice"),
        identity.conversation_key("alice", "a", "c"),
    ):
        assert "alice" not in made
        assert re.fullmatch(r"(bnd|own|cnv)_[0-9a-v]{32}", made)


def test_a_short_identity_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Identity(b"short", "local")


def test_run_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for millisecond in (1, 2, 255, 256, 65_536, 2**40):
        monkeypatch.setattr(ids.time, "time_ns", lambda ms=millisecond: ms * 1_000_000)
        made.append(ids.new_run_id())
    assert made == sorted(made)


def test_a_run_id_names_the_place_of_the_process_that_made_it() -> None:
    holder = ids.new_holder_id()
    made = {ids.new_run_id(holder) for _ in range(1000)}
    assert len(made) == 1000
    assert {ids.place_in(run_id) for run_id in made} == {ids.place_of(holder)}
    assert {len(run_id) for run_id in made} == {len(ids.new_run_id())}
    assert all(is_valid_id(run_id) for run_id in made)


@pytest.mark.parametrize(
    "make",
    [ids.new_run_id, ids.new_lease_id, ids.new_request_id, ids.new_nonce, ids.new_holder_id, ids.new_incident_id],
)
def test_made_ids_are_valid_and_distinct(make: Callable[[], str]) -> None:
    made = {make() for _ in range(1000)}
    assert len(made) == 1000
    assert all(is_valid_id(each) for each in made)


@pytest.mark.parametrize("text", ["", "a" * 129, "a b", "a/b", "é", "a\n", "\x00", "a" * 128 + "\n"])
def test_invalid_ids(text: str) -> None:
    assert not is_valid_id(text)


@pytest.mark.parametrize("text", ["a", "A.b_c:d-9", "a" * 128])
def test_valid_ids(text: str) -> None:
    assert is_valid_id(text)
