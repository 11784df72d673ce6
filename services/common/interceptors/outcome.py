"""How calls went: counted, timed, and told to their spans."""

from time import perf_counter

import grpc

from services.common import metrics
from services.common.errors import HarnessError
from services.common.interceptors.tracing import end_span, start_span
from services.common.status import GRPC_STATUS_CODES


class Outcome:
    """How one call goes."""

    __slots__ = ("code", "error", "recorded", "span", "started")

    def __init__(self, method: str) -> None:
        self.recorded = False
        self.started = perf_counter()
        self.code = grpc.StatusCode.OK
        self.error: HarnessError | None = None
        self.span = start_span(method)

    def failed(self, error: HarnessError) -> None:
        """It ends with this error."""
        self.error = error
        self.code = GRPC_STATUS_CODES[error.grpc_code.value]

    def cancelled(self) -> None:
        """Its caller has gone."""
        self.code = grpc.StatusCode.CANCELLED


class MethodOutcomes:
    """The calls of one method. Made once, so that no call looks up its labels."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._seconds = metrics.RPC_SECONDS.labels(method)
        self._counts = {code: metrics.RPC_HANDLED.labels(method, code.name) for code in grpc.StatusCode}

    def begin(self) -> Outcome:
        """A call begins."""
        return Outcome(self._method)

    def record(self, outcome: Outcome) -> None:
        """It has ended; once is enough."""
        if outcome.recorded:
            return
        outcome.recorded = True
        self._seconds.observe(perf_counter() - outcome.started)
        self._counts[outcome.code].inc()
        end_span(outcome.span, outcome.code.name, outcome.error)
