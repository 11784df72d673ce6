"""The one way in which the judges of a schedule speak."""

from __future__ import annotations


class Violation(Exception):
    """An invariant does not hold. `invariant` is its number, or `queue` for the order of a line."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
