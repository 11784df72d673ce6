"""The port of those that run tools. The broker has decided everything before a call arrives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.runs.tools.record import Ended


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One try of one call. `idempotency_key` is the same for every try of a call and for no other call."""

    tool_id: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    user_id: str
    settings: Mapping[str, Any] = field(repr=False)
    timeout_seconds: float
    max_result_bytes: int
    traceparent: str = ""


class ProviderFailed(Exception):
    """The provider itself failed, not the tool. `code` and `message` are safe to tell (I22).

    `passing`: the same try may succeed later. `reached`: it may have had its effect.
    """

    def __init__(self, code: str, message: str, *, passing: bool, reached: bool) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.passing = passing
        self.reached = reached


def too_large(limit: int) -> Ended:
    """The outcome of a call whose result is beyond its bound: it took effect, and another try would have it again (I11, I35)."""
    return Ended.failed("result_too_large", f"The tool answered, and its result has more than {limit} bytes.")


class ToolProvider(Protocol):
    """Runs tools."""

    async def reach(self) -> None:
        """Returns once a call can be sent; until then nothing of it has begun. Errors: `ProviderFailed`. Cancelled when its time is over."""
        ...

    async def invoke(self, call: ProviderCall) -> Ended:
        """How the call ended, success or the tool's own error. Errors: `ProviderFailed`. Cancelled when its time is over."""
        ...
