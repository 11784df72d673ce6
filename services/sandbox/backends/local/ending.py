"""How sandboxes are ended from outside: through their keeper, or all at once through the lifeline."""

import asyncio
import os
import select
import signal

from services.common.errors import ConfigurationError, HarnessError, Reason

# I27 grants 2 s in all; a keeper needs a few milliseconds.
_STOP_SECONDS = 1.5


def open_lifeline(given: int | None) -> tuple[int, int | None]:
    """The descriptor whose end ends all sandboxes, and, when nobody gave one, the other end of our own."""
    if given is None:
        read, write = os.pipe2(os.O_CLOEXEC)
        return read, write
    try:
        os.set_inheritable(given, False)
    except OSError:
        raise ConfigurationError(f"HARNESS_LIFELINE_FD: {given} is not an open file descriptor.") from None
    return given, None


def has_hung_up(lifeline: int) -> bool:
    """Whether nobody holds the other end any more."""
    poll = select.poll()
    poll.register(lifeline, 0)  # nothing but its end counts: nobody writes to it
    return bool(poll.poll(0))


async def stop_keeper(pidfd: int) -> None:
    """Asks the keeper to end everything; kills it when it does not, and the kernel ends the rest."""
    for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, 10.0)):
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return
        if await _wait_ended(pidfd, seconds):
            return
    raise HarnessError(Reason.UNAVAILABLE, "A sandbox could not be ended in time; it will be tried again.")


async def _wait_ended(pidfd: int, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(pidfd)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(pidfd, readable)
    try:
        async with asyncio.timeout(seconds):
            await ended
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True
