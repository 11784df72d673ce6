"""Prometheus metrics with few labels: never a run, subject or conversation (tracing, "Metrics")."""

from prometheus_client import REGISTRY, Counter, Histogram, generate_latest, start_http_server
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from services.common.errors import ConfigurationError

RPC_HANDLED = Counter("harness_rpc_handled_total", "Calls served, by method and gRPC code.", ["method", "code"])
RPC_SECONDS = Histogram(
    "harness_rpc_seconds",
    "Seconds from a call's arrival to its end, by method.",
    ["method"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
CONTENT_TYPE = CONTENT_TYPE_LATEST


def render() -> bytes:
    """All metrics of this process in the text format, for a server of one's own."""
    return generate_latest(REGISTRY)


class MetricsListener:
    """The HTTP listener of a process that has no HTTP server of its own; one thread."""

    def __init__(self, address: str) -> None:
        if address.startswith("unix:"):
            raise ConfigurationError("HARNESS_METRICS_LISTEN: Prometheus needs host:port, not a unix socket.")
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"))
        except OSError as error:
            raise ConfigurationError(f"HARNESS_METRICS_LISTEN: cannot listen on {address}: {error.strerror}.") from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops the listener and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
