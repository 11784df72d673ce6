"""The text of an index entry sorts as the index does, whatever the values."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.common.store import Range
from services.common.store.mongo_order import entries, entry

SCALARS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.text("\x00\x01\x02\x03a", max_size=6),
)


def order(value: str | int) -> tuple[int, int, bytes]:
    return (0, value, b"") if isinstance(value, int) else (1, 0, value.encode())


@given(st.lists(SCALARS, min_size=3, max_size=3), st.lists(SCALARS, min_size=3, max_size=3))
def test_entries_compare_as_their_values_do(one: list[str | int], two: list[str | int]) -> None:
    ordered = [order(value) for value in one] < [order(value) for value in two]
    assert (entry(one).encode() < entry(two).encode()) is ordered
    assert (entry(one) == entry(two)) is (one == two)


@given(SCALARS, SCALARS, SCALARS, SCALARS, st.sampled_from(["at_least", "above", "at_most", "below"]))
def test_a_range_holds_exactly_what_is_within(first, second, third, bound, side: str) -> None:
    low, high = entries(entry([first]), Range(**{side: bound}))
    place = entry([first, second, third])
    within = {
        "at_least": order(second) >= order(bound),
        "above": order(second) > order(bound),
        "at_most": order(second) <= order(bound),
        "below": order(second) < order(bound),
    }[side]
    assert (low <= place < high) is within


@given(SCALARS, SCALARS, SCALARS)
def test_other_first_values_are_outside(first, other, second) -> None:
    low, high = entries(entry([first]), Range())
    assert (low <= entry([other, second]) < high) is (first == other)
