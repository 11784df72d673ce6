"""The table of errors, and its way over the wire and back."""

import string
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import (
    MAX_ISSUE_CHARACTERS,
    REASON_OF_CATEGORY,
    TABLE,
    Category,
    FieldIssue,
    HarnessError,
    Reason,
    http_status,
    not_found,
)
from services.common.status import from_rpc_error, from_status, to_status

# REST API, "Codes": the statuses clients were promised.
PROMISED = {
    "harness_unknown": 422,
    "harness_disabled": 503,
    "harness_unavailable": 503,
    "harness_contract_incompatible": 422,
    "harness_capability_unsupported": 422,
    "harness_session_conflict": 409,
    "harness_validation_stale": 409,
    "revision_conflict": 409,
    "idempotency_mismatch": 409,
    "interrupt_pending": 409,
    "memory_revision_conflict": 409,
    "capacity": 503,
    "cursor_expired": 410,
    "not_found": 404,
    "invalid_request": 422,
    "unauthenticated": 401,
    "rate_limited": 429,
    "deadline_exceeded": 504,
    "internal": 500,
}
# Worker protocol, "Errors".
PROMISED_CATEGORIES = {
    "STALE_LEASE": "authorization",
    "WORKER_MISMATCH": "configuration",
    "SANDBOX_NOT_READY": "unavailable",
    "SANDBOX_CAPACITY": "capacity",
    "SANDBOX_EVICTED": "unavailable",
    "SANDBOX_LIMIT": "capacity",
}

texts = st.text(max_size=40)
errors = st.builds(
    HarnessError,
    st.sampled_from(Reason),
    texts,
    details=st.lists(st.builds(FieldIssue, texts, texts, texts), max_size=5),
    metadata=st.dictionaries(
        st.text(string.ascii_lowercase, min_size=1).filter(lambda k: k not in {"category", "retryable", "code"}),
        texts,
        max_size=5,
    ),
    retry_after=st.none() | st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000),
    retryable=st.none() | st.booleans(),
)


def parts(error: HarnessError) -> tuple[Any, ...]:
    return (error.reason, error.message, error.details, error.metadata, error.retry_after, error.retryable)


@given(errors)
def test_an_error_survives_the_wire(error: HarnessError) -> None:
    wire = to_status(error).SerializeToString()
    assert parts(from_status(status_pb2.Status.FromString(wire))) == parts(error)


def test_every_reason_has_a_rule_and_every_category_a_reason() -> None:
    assert set(TABLE) == set(Reason)
    assert set(REASON_OF_CATEGORY) == set(Category)
    assert len(Category) == 11
    for category, reason in REASON_OF_CATEGORY.items():
        assert TABLE[reason].category is category


@pytest.mark.parametrize(("code", "status"), PROMISED.items())
def test_rest_codes_have_their_promised_status(code: str, status: int) -> None:
    assert http_status(HarnessError(Reason(code), "x")) == status


@pytest.mark.parametrize(("code", "category"), PROMISED_CATEGORIES.items())
def test_worker_codes_have_their_promised_category(code: str, category: str) -> None:
    assert HarnessError(Reason(code), "x").category.value == category


def test_a_stale_lease_is_a_failed_precondition() -> None:
    assert to_status(HarnessError(Reason.STALE_LEASE, "x")).code == 9


def foreign(reason: str, code: int, **metadata: str) -> status_pb2.Status:
    status = status_pb2.Status(code=code, message="safe")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="harness", metadata=metadata))
    return status


@pytest.mark.parametrize("category", Category)
def test_a_code_of_an_adapters_own_is_read_by_its_category(category: Category) -> None:
    error = from_status(foreign("quota_burst", 13, category=category.value, retryable="true"))
    assert (error.category, error.metadata, error.retryable) == (category, {"code": "quota_burst"}, True)


def test_an_unknown_code_without_a_category_is_read_by_its_grpc_code() -> None:
    assert from_status(foreign("odd", 14)).reason is Reason.UNAVAILABLE
    assert from_status(foreign("odd", 14, category="no such")).reason is Reason.UNAVAILABLE


def test_i22_a_status_of_another_domain_is_not_quoted() -> None:
    status = status_pb2.Status(code=13, message="canary")
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason="internal", domain="elsewhere", metadata={"a": "canary"})
    )
    error = from_status(status)
    assert error.reason is Reason.INTERNAL
    assert "canary" not in f"{error!r} {error.metadata}"


def test_i34_a_call_that_a_stopping_peer_gave_up_is_worth_repeating() -> None:
    nothing = grpc.aio.Metadata()
    given_up = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, nothing, nothing, "CANCELLED"))
    assert (given_up.reason, given_up.retryable) == (Reason.UNAVAILABLE, True)


def test_i35_an_error_is_bounded() -> None:
    issue = FieldIssue("p" * 9999, "c" * 9999, "m" * 9999)
    error = HarnessError(
        Reason.INVALID_REQUEST, "x" * 9999, details=[issue] * 500, metadata={f"k{i}": "v" * 999 for i in range(99)}
    )
    assert (len(error.message), len(error.details), len(error.metadata)) == (1024, 100, 16)
    assert len(error.details[0].message) == MAX_ISSUE_CHARACTERS
    assert len(to_status(error).SerializeToString()) < 96_000


def test_half_characters_do_not_break_the_answer() -> None:
    error = HarnessError(
        Reason.INVALID_REQUEST, "\ud800", details=[FieldIssue("\udfff", "a", "b")], metadata={"k": "\ud800"}
    )
    assert from_status(to_status(error)).message == "?"


def test_i2_not_found_names_no_id() -> None:
    assert not_found("run").message == "No such run."
