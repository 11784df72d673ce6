"""Bounds of a process, of a harness and of a profile, and the order of those who wait (I23, I35)."""

from __future__ import annotations

from services.runs.places import TIMES_FREE, UNBOUNDED, Places, Share

KEY, OTHER, ELSEWHERE = ("reference", "single"), ("reference", "default"), ("another", "default")
ONE = Share(KEY, 1)
OPEN, OPEN_ELSEWHERE = Share(OTHER, UNBOUNDED), Share(ELSEWHERE, UNBOUNDED)


def admit(places: Places, run_id: str, share: Share, owner: str = "o") -> bool:
    """As the dispatcher does with a queued run."""
    if places.may_have(share):
        places.take(share.key)
        return True
    places.enter(run_id, share, owner, 0.0)
    return False


def order(places: Places) -> list[str]:
    """Who is next, with a place given back for each."""
    found: list[str] = []
    while (one := places.next()) is not None:
        found.append(one[0])
        places.give(one[1])
    return found


def test_i35_a_process_executes_as_many_as_it_may_and_a_line_has_an_end() -> None:
    places = Places(1, 1)
    assert admit(places, "x", OPEN)
    assert not places.is_full_for(OPEN)
    assert places.enter("a", OPEN, "o", 0.0)
    assert not places.enter("a", OPEN, "o", 0.0)
    assert places.is_full_for(OPEN)
    assert places.enter("b", OPEN, "o", 0.0)  # stored already: it waits beyond the bound for starts
    assert not places.has_line_for(OTHER)
    assert not places.enter("c", OPEN, "o", 0.0)
    assert places.next() is None
    places.give(OTHER)
    assert places.next() == ("a", OTHER)
    assert (places.room, places.taken) == (0, 1)


def test_i23_a_full_line_refuses_its_own_profile_alone() -> None:
    places = Places(1, 1)
    assert admit(places, "x", OPEN)
    for run_id in ("a", "b", "c"):
        assert not admit(places, run_id, OPEN)
    assert places.is_full_for(OPEN)
    assert not places.is_full_for(OPEN_ELSEWHERE)
    assert places.enter("d", OPEN_ELSEWHERE, "o", 0.0)


def test_i23_a_run_whose_profile_is_full_is_in_nobodys_way() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    assert not admit(places, "b", ONE)
    assert places.waits("b")
    assert places.next() is None
    assert admit(places, "c", Share(OTHER, 1))


def test_i23_what_becomes_free_goes_to_who_waited_longest_and_to_nobody_who_comes_later() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    for run_id in ("b", "c"):
        assert not admit(places, run_id, ONE)
    places.give(KEY)
    assert not places.may_have(ONE)  # who waits comes first
    assert places.next() == ("b", KEY)
    places.give(KEY)
    assert places.next() == ("c", KEY)
    assert not places.may_have(ONE)
    places.give(KEY)
    assert places.may_have(ONE)


def test_i23_a_flood_waits_in_turn_with_the_others_however_long_its_line_is() -> None:
    places = Places(1, 1_000)
    assert admit(places, "x", OPEN)
    for number in range(500):
        admit(places, f"flood-{number}", OPEN)
    for run_id in ("late-1", "late-2"):
        admit(places, run_id, OPEN_ELSEWHERE)
    admit(places, "single", ONE)
    places.give(OTHER)
    # Harness by harness, and of the flooded harness profile by profile.
    assert order(places)[:6] == ["flood-0", "late-1", "single", "late-2", "flood-1", "flood-2"]


def test_of_a_profile_owners_are_served_in_turn_and_each_first_come_first_served() -> None:
    places = Places(1, 100)
    assert admit(places, "x", OPEN)
    for number in range(5):
        admit(places, f"a{number}", OPEN, "a")
    for number in range(2):
        admit(places, f"b{number}", OPEN, "b")
    places.give(OTHER)
    assert order(places) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_i23_a_harness_whose_runs_all_hang_leaves_places_to_the_next() -> None:
    places = Places(90, 1_000)
    flood = sum(admit(places, f"flood-{number}", OPEN) for number in range(200))
    assert flood == 80 == 90 * TIMES_FREE // (TIMES_FREE + 1)
    second = sum(admit(places, f"second-{number}", OPEN_ELSEWHERE) for number in range(200))
    assert second > 0
    # What comes back is shared again: the flood gets no more of it than leaves room.
    for _ in range(second):
        places.give(ELSEWHERE)
    while places.next() is not None:
        pass
    assert places.room > 0
    assert admit(places, "third", Share(("third", "default"), UNBOUNDED))


def test_a_small_process_leaves_no_place_idle() -> None:
    places = Places(9, 10)
    assert sum(admit(places, f"a{number}", OPEN) for number in range(20)) == 8
    places = Places(4, 10)
    assert sum(admit(places, f"a{number}", OPEN) for number in range(20)) == 4


def test_a_takeover_is_counted_and_frees_nothing_while_it_is_too_many() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    places.take(KEY)
    assert not admit(places, "b", ONE)
    places.give(KEY)
    assert places.next() is None
    places.give(KEY)
    assert places.next() == ("b", KEY)


def test_a_raised_bound_lets_all_in_that_it_allows() -> None:
    places = Places(10, 10)
    assert admit(places, "a", ONE)
    for run_id in ("b", "c", "d"):
        assert not admit(places, run_id, Share(KEY, 1 if run_id != "d" else 3))
    assert [places.next(), places.next(), places.next()] == [("b", KEY), ("c", KEY), None]


def test_who_was_executed_elsewhere_waits_no_more() -> None:
    places = Places(1, 2)
    assert admit(places, "x", OPEN)
    assert places.enter("a", OPEN, "o", 1.0)
    assert places.enter("b", OPEN, "o", 2.0)
    assert places.is_full_for(OPEN)
    assert places.waiting_since(1.5) == {"a"}
    assert places.leave("a")
    assert not places.leave("a")
    assert not places.is_full_for(OPEN)
    places.give(OTHER)
    assert order(places) == ["b"]
