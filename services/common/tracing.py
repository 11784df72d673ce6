"""W3C trace context: accepted only in its exact shape, otherwise replaced; correlation, never authorisation (tracing, "Tracing")."""

import re
import secrets
from contextvars import ContextVar
from typing import Any

from services.common.errors import ConfigurationError

TRACEPARENT = "traceparent"
_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_current: ContextVar[str | None] = ContextVar("harness_traceparent", default=None)


def accept_traceparent(text: str | bytes | None) -> str:
    """The given trace context when it has the exact shape, else a new one."""
    if isinstance(text, str) and _SHAPE.fullmatch(text):
        return text
    return new_traceparent()


def new_traceparent() -> str:
    """A new trace, not sampled."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"


def current_traceparent() -> str:
    """The trace context of the current RPC; a new one outside of any."""
    return _current.get() or new_traceparent()


def set_traceparent(traceparent: str) -> None:
    """For the tracing interceptor and the gateway, once per request."""
    _current.set(traceparent)


class _Exporter:
    """The process's span exporter, while tracing is on."""

    tracer: Any = None
    provider: Any = None


def tracer() -> Any:
    """The OpenTelemetry tracer, or None when spans are off: one attribute read, so that asking costs nothing."""
    return _Exporter.tracer


def configure(service: str, *, enabled: bool) -> None:
    """Turns on spans, sent by OTLP to where the standard OTEL_* variables say. A dead collector drops spans and changes nothing else."""
    if not enabled:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError(
            "HARNESS_OTEL_ENABLED is true, but the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-grpc are not installed: "
            "install them or set it to false."
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"harness-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    use_provider(provider)


def use_provider(provider: Any) -> None:
    """Sends spans through an OpenTelemetry tracer provider of the caller's choice."""
    _Exporter.provider = provider
    _Exporter.tracer = provider.get_tracer("harness")


def shutdown() -> None:
    """Flushes and ends the exporter, if there is one."""
    provider, _Exporter.provider, _Exporter.tracer = _Exporter.provider, None, None
    if provider is not None:
        provider.shutdown()
