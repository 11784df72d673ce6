"""The generated pages say what the code says."""

import pytest

from build_tools.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_generated_page_is_not_stale(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), "run `make docs` and commit what it writes"


def test_everything_in_the_contracts_has_a_comment():
    text = (FOLDER / "contracts.md").read_text("utf-8")
    assert "|  |\n" not in text, "a row of docs/reference/contracts.md has no meaning: comment it in the contract"
