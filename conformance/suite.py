"""The certification's cases as tests, for `conformance.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conformance.cases import Case
    from conformance.plugin import Session


def test_case(certification_case: Case, certification_session: Session) -> None:
    """One case; what is not applicable or not verified is skipped, and says why."""
    result = certification_session.run(certification_case)
    if result.result == "failed":
        pytest.fail(f"{certification_case.rule.id}: {certification_case.rule.text}\n{result.reason}", pytrace=False)
    if result.result != "passed":
        pytest.skip(f"{result.result.replace('_', ' ')}: {result.reason}")
