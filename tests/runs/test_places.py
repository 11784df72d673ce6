"""Bounds of a process and of a profile, and the order of those who wait (I23, I35)."""

from __future__ import annotations

from services.runs.places import UNBOUNDED, Places, Share

KEY, OTHER = ("reference", "single"), ("reference", "default")
ONE = Share(KEY, 1)


def admit(places: Places, run_id: str, share: Share) -> bool:
    """As the dispatcher does with the first in line."""
    if places.handed(run_id) is not None:
        return True
    if places.may_have(share):
        places.take_of(share.key)
        return True
    places.put_aside(run_id, share)
    return False


def test_i35_a_process_executes_as_many_as_it_may_and_its_line_has_an_end() -> None:
    places = Places(1, 1)
    assert places.has_room
    places.take()
    assert not places.has_room
    assert not places.is_full()
    assert places.enter("a")
    assert not places.enter("a")
    assert places.is_full()
    assert places.enter("b")  # stored already: it waits beyond the bound for starts
    assert not places.enter("c")
    assert [places.next(), places.next(), places.next()] == ["a", "b", None]
    places.give()
    assert (places.has_room, places.taken) == (True, 0)


def test_i23_a_run_whose_profile_is_full_waits_aside() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    assert not admit(places, "b", ONE)
    assert places.waits("b")
    assert places.next() is None  # in nobody's way
    assert places.may_have(Share(OTHER, 1))
    assert places.may_have(Share(OTHER, UNBOUNDED))


def test_i23_what_becomes_free_goes_to_who_waited_longest_and_to_nobody_who_comes_later() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    for run_id in ("b", "c"):
        assert not admit(places, run_id, ONE)
    assert places.enter("of another profile")
    places.give_of(KEY)
    assert not places.may_have(ONE)
    assert places.next() == "b"
    assert admit(places, "b", ONE)
    places.give_of(KEY)
    assert places.next() == "c"
    assert admit(places, "c", ONE)
    assert not places.may_have(ONE)
    places.give_of(KEY)
    assert places.may_have(ONE)
    assert places.next() == "of another profile"


def test_a_takeover_is_counted_and_frees_nothing_while_it_is_too_many() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    places.take_of(KEY)
    assert not admit(places, "b", ONE)
    places.give_of(KEY)
    assert places.next() is None
    places.give_of(KEY)
    assert places.next() == "b"


def test_i35_the_line_of_a_profile_has_an_end_and_takes_nothing_from_others() -> None:
    places = Places(1, 1)
    assert admit(places, "a", ONE)
    assert not places.is_full_for(ONE)
    assert places.put_aside("b", ONE)
    assert places.is_full_for(ONE)
    assert not places.is_full_for(Share(OTHER, 1))
    assert places.put_aside("c", ONE)
    assert not places.put_aside("d", ONE)
    assert not places.is_full()


def test_a_raised_bound_lets_all_in_that_it_allows() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    for run_id in ("b", "c", "d"):
        assert not admit(places, run_id, Share(KEY, 1 if run_id != "d" else 2))
    places.give_of(KEY)
    assert {places.next(), places.next()} == {"b", "c"}
    assert places.next() is None
