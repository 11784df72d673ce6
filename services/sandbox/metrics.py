"""What the sandbox service counts. No label ever names a binding."""

from typing import Final

from prometheus_client import Counter

SHUT_DOWN: Final = Counter(
    "harness_sandbox_shutdowns_total",
    "Workers told to end before their sandbox was destroyed: they released everything, left something, or did not answer.",
    ["outcome"],
)
REFUSED: Final = Counter(
    "harness_sandboxes_refused_total", "Sandboxes asked for and not made, by the reason told.", ["reason"]
)
