"""What Prometheus sees of the gateway; labels are route templates and statuses, never an id (tracing, "Metrics")."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("harness_http_requests_total", "HTTP requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "harness_http_request_seconds",
    "Seconds from a request's head to the end of its answer; streams are left out.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
CONNECTIONS = Gauge("harness_http_connections", "Open HTTP connections.")
STREAMS = Gauge("harness_streams_active", "Open event streams.")
FEEDS = Gauge("harness_stream_feeds", "Runs watched upstream.")
DELIVERIES = Counter("harness_stream_writes_total", "Writes to subscribers; one may carry several events.")
EVENTS = Counter("harness_stream_events_total", "Events encoded for streams.")
FALLBACKS = Counter("harness_stream_fallbacks_total", "Times a subscriber fell behind what is kept and read the log.")
RECONNECTS = Counter("harness_stream_reconnects_total", "Times a watch of a run was opened again.")
ABANDONED = Counter("harness_stream_abandoned_total", "Streams ended early for their client to resume.")
TRANSFERS = Gauge("harness_file_transfers_active", "Files being sent or received.")
BROKEN_DOWNLOADS = Counter("harness_file_downloads_broken_total", "Downloads that ended before their content did.")
RESTORED = Counter(
    "harness_stream_restored_events_total", "Events read again to begin another encoding than canonical at a cursor."
)
