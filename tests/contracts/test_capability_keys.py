"""The capability keys stand in three places that cannot import one another; they are the same keys in the same order."""

import re
from pathlib import Path

from adapters.sdk.capabilities import CAPABILITY_KEYS
from services.common.capabilities import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "capabilities.md"


def test_the_sdk_the_catalog_and_the_page_name_the_same_keys():
    rows = PAGE.read_text().split("| key |")[1]
    documented = re.findall(r"^\| `([a-z_.]+)` \|", rows, re.MULTILINE)
    assert tuple(documented) == CAPABILITY_KEYS == KEYS
    assert len(set(KEYS)) == len(KEYS) == 38
