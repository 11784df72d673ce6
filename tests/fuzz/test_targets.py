"""A few hundred fixed examples of every target; `HARNESS_FUZZ_EXAMPLES` plays as many others."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import REFUSED, TAKEN, TARGETS

VARIABLE = "HARNESS_FUZZ_EXAMPLES"
EXAMPLES = int(os.environ.get(VARIABLE, "250"))


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_is_taken_or_refused_by_a_rule(name: str) -> None:
    seen: set[str] = set()

    @settings(max_examples=EXAMPLES, derandomize=VARIABLE not in os.environ, database=None)
    @given(st.integers(0, 2**32 - 1))
    def play(seed: int) -> None:
        # By its seed alone: `python -m tests.fuzz --target NAME --seed SEED` plays the same.
        seen.add(TARGETS[name](random.Random(seed)))

    play()
    # What is only ever refused, or only ever taken, tests nothing.
    assert seen >= ({TAKEN} if name == "status" else {TAKEN, REFUSED})
