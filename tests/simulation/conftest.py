"""What a simulated process never came to is no mistake of the code: it died first."""

import gc
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEVER_BEGUN = "ignore:coroutine .* was never awaited:RuntimeWarning"


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """A process that is cut off leaves work that was handed to a task and never begun, as real ones do; elsewhere that is an error."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(NEVER_BEGUN))


@pytest.fixture(scope="module", autouse=True)
def _what_is_left_is_collected_here() -> Generator[None]:
    """Not during a test of another module, which would be blamed for it."""
    yield
    gc.collect()
