"""Announcing queued runs: one stream per environment, one consumer group of all executors.

Delivered means gone (NOACK): a replica that dies with an announcement in its hands loses a hint, and the sweep finds the run.
"""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.runs.bus import metrics
from services.runs.bus.redis_link import BLOCK_MILLISECONDS, BUS_ERRORS, Backoff, answer_in_time
from services.runs.bus.redis_sender import Entry

MAX_ANNOUNCED: Final = 10_000
"""Announcements kept; older ones go (I35)."""
KEPT_SECONDS: Final = 3_600
GROUP: Final = "executors"
CONSUMER: Final = "any"
"""One name for all replicas: nothing is pending, so nobody has to be told apart, and replicas that are gone leave nothing behind."""
_RUN: Final = b"run"


def dispatch_key(environment: str) -> bytes:
    """The stream of an environment."""
    return f"harness:dispatch:{environment}".encode()


def announcement(key: bytes, run_id: str) -> Entry:
    """What stands in the stream for a queued run."""
    return Entry(key, (_RUN, run_id.encode()), MAX_ANNOUNCED, KEPT_SECONDS)


async def read_announcements(client: Redis, key: bytes) -> AsyncGenerator[str, None]:
    """See `DispatchBus.announcements`."""
    backoff = Backoff()
    while True:
        try:
            async with answer_in_time():
                answer: Any = await client.xreadgroup(
                    GROUP, CONSUMER, {key: ">"}, count=1, block=BLOCK_MILLISECONDS, noack=True
                )
            backoff.reset()
        except BUS_ERRORS as error:
            if not (_is(error, "NOGROUP", "UNBLOCKED") and await _make_group(client, key)):
                # Whether the bus is away, its other connections say.
                await backoff.wait()
            continue
        for _, entries in answer or ():
            for _, fields in entries:
                run_id = (fields or {}).get(_RUN)
                if run_id is None:
                    metrics.MALFORMED.inc()
                else:
                    yield run_id.decode()


async def _make_group(client: Redis, key: bytes) -> bool:
    """Make the group, and the stream, when the server has none (any more); what was announced meanwhile is still handed out."""
    try:
        async with answer_in_time():
            await client.xgroup_create(key, GROUP, id="0", mkstream=True)
    except BUS_ERRORS as error:
        return _is(error, "BUSYGROUP")
    return True


def _is(error: Exception, *codes: str) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(codes)
