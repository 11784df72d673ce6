"""What a service says about its store besides the address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAMESPACE: Final = re.compile(r"[a-z][a-z0-9]{0,30}\Z")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`namespace` keeps services apart that share one database: it leads the name of all that the service keeps there.

    `pool_size` (1 to 500) is how many connections to a server are open at most, `timeout_seconds` (0.1 to 300) how long one call may take with
    everything: the wait for a connection, for a primary, the driver's own repetitions (I35). A SQLite file belongs to
    one service and needs none of them.
    """

    namespace: str = "harness"
    pool_size: int = 32
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not _NAMESPACE.match(self.namespace):
            raise ValueError(f"namespace {self.namespace!r}: use 1 to 31 of a-z and 0-9, a letter first")
        if not 1 <= self.pool_size <= 500:
            raise ValueError(f"pool size {self.pool_size} is not within 1 to 500")
        if not 0.1 <= self.timeout_seconds <= 300:
            raise ValueError(f"timeout {self.timeout_seconds} s is not within 0.1 to 300")
