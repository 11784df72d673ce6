"""The trace context of each call, and its span when spans are on (tracing, "Tracing")."""

from typing import Any

from services.common.errors import HarnessError
from services.common.interceptors.auth import Metadata
from services.common.tracing import TRACEPARENT, accept_traceparent, current_traceparent, set_traceparent, tracer


def enter_trace(metadata: Metadata) -> None:
    """Makes the caller's trace context, or a new one in place of a malformed one, that of the current task."""
    # grpc delivers this key once, however often it was sent.
    set_traceparent(accept_traceparent(next((value for key, value in metadata if key == TRACEPARENT), None)))


def start_span(method: str) -> Any:
    """A server span of the current trace, to be ended with `end_span`; None when spans are off."""
    if tracer() is None:
        return None
    from opentelemetry import context as otel_context
    from opentelemetry.trace import SpanKind, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({TRACEPARENT: current_traceparent()})
    current = tracer().start_span(method.lstrip("/"), context=parent, kind=SpanKind.SERVER, record_exception=False)
    # Never detached: the RPC is one task, and its context ends with it.
    otel_context.attach(set_span_in_context(current))
    facts = current.get_span_context()
    if facts.is_valid:
        set_traceparent(f"00-{facts.trace_id:032x}-{facts.span_id:016x}-{int(facts.trace_flags):02x}")
    return current


def end_span(current: Any, code: str, error: HarnessError | None) -> None:
    """Ends a span with the call's gRPC code and the error's category: never with the text of an exception."""
    if current is None:
        return
    current.set_attribute("rpc.response.status_code", code)
    if error is not None:
        current.set_attribute("harness.error.category", error.category.value)
        current.set_attribute("harness.error.reason", error.reason.value)
    current.end()
