"""Intents: somebody's decision that a run must end, written on the run before anything else happens (run protocol, End)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CancelReason(StrEnum):
    """Why a run is cancelled; the words of `run.cancelled`."""

    CLIENT_REQUEST = "client_request"
    SESSION_CLEARED = "session_cleared"
    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run fails, as it may be shown (I22). `category` is a word of the error contract."""

    code: str
    category: str
    message: str
    retryable: bool = False
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """Either a cancel or a failure. From its write on no tool call of the run passes. Its state writes pass until its slot is claimed or
    given back, since sessions knows nothing of intents; the answer of a cancel waits for that (I12).
    """

    at: int
    """Unix milliseconds."""
    cancel: CancelReason | None = None
    failure: Failure | None = None

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        if self.cancel is not None:
            return {"at": self.at, "cancel": self.cancel.value}
        failure = self.failure
        assert failure is not None, "an intent is a cancel or a failure"  # noqa: S101 - tells the type checker
        return {
            "at": self.at,
            "code": failure.code,
            "category": failure.category,
            "message": failure.message,
            "retryable": failure.retryable,
            "retry_after_seconds": failure.retry_after_seconds,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Intent:
        """The inverse of `to_document`."""
        cancel = document.get("cancel")
        if cancel is not None:
            return cls(at=document["at"], cancel=CancelReason(cancel))
        return cls(
            at=document["at"],
            failure=Failure(
                code=document["code"],
                category=document["category"],
                message=document["message"],
                retryable=document["retryable"],
                retry_after_seconds=document["retry_after_seconds"],
            ),
        )


def cancelled(reason: CancelReason, now: int) -> Intent:
    """The wish to cancel."""
    return Intent(at=now, cancel=reason)


def failed(failure: Failure, now: int) -> Intent:
    """The engine's decision that the run failed."""
    return Intent(at=now, failure=failure)
