"""What a run says when it got no sandbox: why in fixed words, what an operator can do, and nothing of the configuration (I18, I22)."""

from __future__ import annotations

import pytest

from services.common.errors import HarnessError, Reason
from services.common.sandbox_cause import SandboxCause, caused
from services.runs import ending

CANARY = "canary-of-the-operators-file"


@pytest.mark.parametrize("cause", SandboxCause)
def test_every_cause_is_told_in_its_own_words(cause: SandboxCause) -> None:
    reason = Reason.CONFIGURATION_INVALID if cause is SandboxCause.PROFILE_INVALID else Reason.SANDBOX_NOT_READY
    failure = ending.failure_of(caused(cause, CANARY, reason=reason))
    assert failure.code == reason.value.lower()
    assert CANARY not in failure.message
    assert "operator" in failure.message
    assert len(failure.message) <= 1_000
    others = {ending.failure_of(caused(other, "")).message for other in SandboxCause if other is not cause}
    assert failure.message not in others


def test_a_reason_without_a_cause_is_told_too() -> None:
    failure = ending.failure_of(HarnessError(Reason.SANDBOX_CAPACITY, CANARY, retry_after=1.0))
    assert "HARNESS_MAX_SANDBOXES" in failure.message
    assert failure.retryable
    # A cause that a newer sandbox service names is not known here: its reason is.
    newer = HarnessError(Reason.SANDBOX_NOT_READY, CANARY, metadata={"cause": "something_new"})
    assert ending.failure_of(newer).message.startswith("The conversation's sandbox did not come up.")


def test_any_other_failure_says_its_category_alone() -> None:
    failure = ending.failure_of(HarnessError(Reason.UNAVAILABLE, CANARY))
    assert failure.message == "The run could not be executed (unavailable)."
