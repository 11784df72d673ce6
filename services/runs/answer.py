"""The answer of a whole run, joined from its events (REST API, invoke)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from services.common.errors import REASON_OF_CATEGORY, Category, HarnessError, Reason

MAX_ANSWER_BYTES: Final = 8 << 20
"""Bound of content and thinking together, UTF-8."""
_CATEGORIES: Final = {
    error_pb2.ErrorCategory.Value(f"ERROR_CATEGORY_{category.name}"): category for category in Category
}

_EFFECTS: Final = {
    error_pb2.SIDE_EFFECT_STATUS_NONE: "none",
    error_pb2.SIDE_EFFECT_STATUS_POSSIBLE: "possible",
    error_pb2.SIDE_EFFECT_STATUS_KNOWN: "known",
}


class Answer:
    """Takes a run's events in order; `response` is the answer once the terminal was taken."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._bytes = 0
        self._usage: payload_pb2.UsageUpdated | None = None
        self._terminal: payload_pb2.EventPayload | None = None

    def take(self, events: Iterable[event_pb2.Event]) -> bool:
        """Take the next events; True once the terminal was among them. Errors: `capacity` past 8 MiB, with the run to page through."""
        for event in events:
            payload = event.payload
            kind = payload.WhichOneof("kind")
            if kind == "content_delta" and not event.namespace:
                self._add(self._content, payload.content_delta.text)
            elif kind == "reasoning_delta" and not event.namespace:
                self._add(self._thinking, payload.reasoning_delta.text)
            elif kind == "usage_updated":
                self._usage = payload.usage_updated
            elif kind in ("run_completed", "run_interrupted", "run_failed", "run_cancelled"):
                self._terminal = payload
        return self._terminal is not None

    def response(self) -> run_service_pb2.InvokeResponse:
        """The answer. Errors: the run's own failure; `cancelled`; `interrupt_pending` for a run that waits for a person."""
        terminal = self._terminal
        if terminal is None:
            raise ValueError("the run has not ended")
        facts = {"run_id": self._run_id}
        kind = terminal.WhichOneof("kind")
        if kind == "run_failed":
            raise _failure(terminal.run_failed, facts)
        if kind == "run_cancelled":
            raise HarnessError(Reason.CANCELLED, "The run was cancelled.", metadata=facts)
        if kind == "run_interrupted":
            raise HarnessError(Reason.INTERRUPT_PENDING, "The run waits for a person: resume it.", metadata=facts)
        response = run_service_pb2.InvokeResponse(
            content="".join(self._content), run_id=self._run_id, usage=self._usage
        )
        if self._thinking:
            response.thinking = "".join(self._thinking)
        return response

    def _add(self, texts: list[str], text: str) -> None:
        self._bytes += len(text.encode())
        if self._bytes > MAX_ANSWER_BYTES:  # I35
            raise HarnessError(
                Reason.CAPACITY,
                "The answer is larger than 8 MiB: page through the run's events instead.",
                metadata={"run_id": self._run_id},
                retryable=False,
            )
        texts.append(text)


def _failure(failed: payload_pb2.RunFailed, facts: dict[str, str]) -> HarnessError:
    retry_after = failed.retry_after_seconds if failed.HasField("retry_after_seconds") else None
    return HarnessError(
        REASON_OF_CATEGORY[_CATEGORIES.get(failed.category, Category.INTERNAL)],
        failed.message,
        metadata={
            **facts,
            "code": failed.code,
            "side_effect_status": _EFFECTS.get(failed.side_effect_status, "possible"),
        },
        retry_after=retry_after,
        retryable=failed.retryable,
    )
