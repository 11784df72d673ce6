"""What Prometheus sees of the egress; labels are the operator's endpoint ids and statuses, never an id of a run (tracing, Metrics)."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter(
    "harness_model_requests_total", "Requests to models, by endpoint and status.", ["endpoint", "status"]
)
BROKEN = Counter("harness_model_answers_broken_total", "Answers that ended in the middle, by endpoint.", ["endpoint"])
AT_WORK = Gauge("harness_model_requests_active", "Requests to models at work.")
FIRST_BYTE = Histogram(
    "harness_model_first_byte_seconds",
    "Seconds from a request's head to the head of its answer, by endpoint.",
    ["endpoint"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
