"""Connections to the bus server, and whether it answers."""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

import asyncio
import random
from typing import Final
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.common.errors import ConfigurationError
from services.common.logs import get_logger
from services.runs.bus import metrics

BUS_ERRORS: Final = (RedisError, OSError)
"""What a bus that is away, or refuses, raises."""
BLOCK_MILLISECONDS: Final = 2_000
"""How long a read waits at the server before it is repeated."""
ANSWER_SECONDS: Final = 5.0
"""An answer later than this is none; longer than a read waits at the server."""
FIRST_RETRY_SECONDS: Final = 0.02
LAST_RETRY_SECONDS: Final = 1.0
SAID_SECONDS: Final = 5.0
"""How often the log says at most that the bus came or went: a connection that breaks again and again fills no disk (I35)."""
_log = get_logger(__name__)


def check_bus_url(url: str) -> str:
    """`redis://host:port/0`, `rediss://…` or `unix:///path`. Errors: `ConfigurationError`, which never quotes the url: it may hold a password."""
    try:
        parts = urlsplit(url)
        usable = (
            parts.hostname and parts.port != 0 if parts.scheme in ("redis", "rediss") else parts.path not in ("", "/")
        )
    except ValueError:
        usable = False
    else:
        usable = usable and parts.scheme in ("redis", "rediss", "unix")
    if not usable:
        raise ConfigurationError(
            "HARNESS_BUS_URL: write redis://host:port/0, rediss://host:port/0 or unix:///absolute/path."
        )
    return url


def connect(url: str) -> Redis:
    """A client that dials when it is first used and repeats nothing by itself: a hint is not worth a second try.

    Use it within `answer_in_time`. A timeout of its own it has for dialling only: it would write through `asyncio.wait_for`, which in Python
    3.11 can swallow the cancellation of its caller.
    """
    return Redis.from_url(
        url, protocol=2, socket_timeout=None, socket_connect_timeout=ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
    )


def answer_in_time() -> asyncio.Timeout:
    """Bounds one exchange with the server (I35); too late is one of the `BUS_ERRORS`."""
    return asyncio.timeout(ANSWER_SECONDS)


class BusHealth:
    """Whether the server answers, said in the log once per change, but not more often than every 5 seconds (I34). Every connection tells of
    itself under a name of its own.
    """

    def __init__(self) -> None:
        self._reached = False
        self._failing: set[str] = set()
        self._why = ""
        self._said: bool | None = None
        self._changes = 0
        self._later: asyncio.TimerHandle | None = None
        metrics.UP.set(0)

    @property
    def is_up(self) -> bool:
        """Whether it was reached, and nothing failed since that did not succeed again."""
        return self._reached and not self._failing

    def answered(self, connection: str) -> None:
        """The server did what it was asked."""
        before, self._reached = self.is_up, True
        self._failing.discard(connection)
        self._changed(before)

    def failed(self, connection: str, error: Exception) -> None:
        """It did not."""
        before = self.is_up
        self._failing.add(connection)
        self._why = type(error).__name__
        self._changed(before)

    def close(self) -> None:
        """Nothing is said any more."""
        if self._later is not None:
            self._later.cancel()

    def _changed(self, before: bool) -> None:
        up = self.is_up
        if up is before and self._said is not None:
            return
        metrics.UP.set(int(up))
        self._changes += 1
        if self._later is None:
            self._say()

    def _say(self) -> None:
        self._later = None
        up = self.is_up
        if up is self._said:
            return
        changes, self._changes = self._changes, 0
        self._said = up
        self._later = asyncio.get_running_loop().call_later(SAID_SECONDS, self._say)
        if up:
            _log.info("bus_up", changes=changes)
        else:
            _log.warning("bus_away", error=self._why, changes=changes, meaning="watchers poll the log until it is back")


class Backoff:
    """Waits between attempts to reach a server that is away, jittered and bounded."""

    def __init__(self) -> None:
        self._seconds = FIRST_RETRY_SECONDS

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._seconds = FIRST_RETRY_SECONDS

    async def wait(self) -> None:
        """Wait before the next one."""
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        self._seconds = min(self._seconds * 2, LAST_RETRY_SECONDS)
