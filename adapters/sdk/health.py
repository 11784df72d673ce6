"""What an adapter lets the host look at (contract, Health contract): small, free of side effects, each with a name of its own."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

DEPENDENCY = "dependency"
CONFIGURATION = "configuration"
PROVIDER = "provider"
STORAGE = "storage"
CAPACITY = "capacity"
# What every report speaks of; the host looks at the first and the last itself.
NAMES = (DEPENDENCY, CONFIGURATION, PROVIDER, STORAGE, CAPACITY)


@dataclass(frozen=True, slots=True)
class Probe:
    """One look that the host makes, beside the others and within a bound of its own, so that one that hangs hides no other.

    `look` returns when the thing is well. It raises `Impaired` when it works in part, or a `HarnessError` when it does not; the message of either is
    shown to operators and authors. It is cancelled at its bound, and must neither run a model or a tool nor change anything.
    """

    name: str
    look: Callable[[], Awaitable[None]]


class Impaired(Exception):
    """It works in part, or soon will not: degraded. The text is public."""
