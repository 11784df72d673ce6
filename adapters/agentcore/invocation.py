"""One invocation: read in a thread, and sent again only where it cannot have run (I11)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from adapters.agentcore.clients import Connections
from adapters.agentcore.failures import failure_of, surely_not_run
from adapters.agentcore.threads import read_in_thread
from adapters.sdk import events
from adapters.sdk.cancellation import Deadline
from adapters.sdk.events import Draft

FIRST_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 5.0
"""A provider that wants a longer rest than this gets it: the run fails with its hint."""
T = TypeVar("T")


async def invoke(
    connections: Connections, read: Callable[[Any], Iterator[T]], *, retries: int, deadline: Deadline
) -> AsyncGenerator[list[T] | Draft, None]:
    """Lots of what `read` yields, given a client; and a warning before each further try. Raises HarnessError."""
    tries = 0
    while True:
        begun = False
        try:
            async with (
                connections.stream() as client,
                contextlib.aclosing(read_in_thread(partial(read, client))) as lots,
            ):
                async for lot in lots:
                    begun = True
                    yield lot
            return
        except Exception as error:  # noqa: BLE001 - whatever boto3 raises is classified
            failure = failure_of(error)
            wait = FIRST_WAIT_SECONDS * 2**tries if failure.retry_after is None else failure.retry_after
            again = not begun and tries < retries and surely_not_run(failure)
            if not again or wait > min(MAX_WAIT_SECONDS, deadline.remaining()):
                raise failure from None
        tries += 1
        yield events.warning(
            "provider_asked_again", f"The provider could not take the turn ({failure.code}); asked again."
        )
        await asyncio.sleep(wait)
