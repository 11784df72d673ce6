"""What Prometheus sees of the catalog; labels are the operator's ids, never an agent's (tracing, Metrics)."""

from prometheus_client import Counter, Gauge

ROUNDS = Counter(
    "harness_agent_rounds_total",
    "Times an adapter was told which agents live under a profile, by outcome: done, faults or failed.",
    ["harness_id", "outcome"],
)
CHANGES = Counter(
    "harness_agent_resources_changed_total",
    "What adapters made, updated and removed for agents.",
    ["harness_id", "change"],
)
LEFT = Gauge(
    "harness_agent_resources_left", "Changes that the last round left to the next.", ["harness_id", "profile_id"]
)
