"""The bounded validator: what it says is what JSON Schema says, and it looks at each item once."""

from services.common.json_schema import bounded_validator


class Counting(str):
    """A text that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return str.__eq__(self, other)


def test_i35_items_are_not_compared_each_with_each_other() -> None:
    items: list[object] = [Counting(number) for number in range(500)]
    items += list(range(500))  # of two kinds, so that they cannot be sorted
    errors = list(bounded_validator(100)({"uniqueItems": True}).iter_errors(items))
    assert not errors
    assert Counting.compared < 1_000


def test_i35_a_text_past_the_bound_matches_no_pattern() -> None:
    validator = bounded_validator(3)({"pattern": "a"})
    assert validator.is_valid("aaa")
    assert not validator.is_valid("aaaa")
