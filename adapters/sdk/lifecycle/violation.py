"""What is said when an event breaks a rule: a number, a code and a sentence, never anything of the event's content."""

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2


class ProtocolViolation(Exception):
    """An event that may not enter a log. The machine that raised it is unchanged and takes the next event as before.

    `rule` is the number of the lifecycle rule in the event specification (7: malformed or oversized), `code` a stable
    machine code, `summary` a sentence made of our own words and the event's kind alone: safe to log and to show (I22).
    """

    def __init__(self, rule: int, code: str, summary: str) -> None:
        super().__init__(summary)
        self.rule = rule
        self.code = code
        self.summary = summary

    def __str__(self) -> str:
        return f"event rule {self.rule} ({self.code}): {self.summary}"


def failed_draft(
    violation: ProtocolViolation,
    side_effects: "error_pb2.SideEffectStatus.ValueType" = error_pb2.SIDE_EFFECT_STATUS_POSSIBLE,
) -> event_pb2.EventDraft:
    """The terminal that ends a run after a violation (rules 6 and 7): category `protocol`, not retryable."""
    return event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(
            run_failed=payload_pb2.RunFailed(
                code="protocol_violation",
                category=error_pb2.ERROR_CATEGORY_PROTOCOL,
                message=f"The harness broke the event contract: {violation.summary}",
                retryable=False,
                side_effect_status=side_effects,
                diagnostic=str(violation),
            )
        )
    )


def missing_terminal() -> ProtocolViolation:
    """Rule 6: the stream of a run ended, and no terminal came."""
    return ProtocolViolation(6, "missing_terminal", "the event stream ended without a terminal event")
