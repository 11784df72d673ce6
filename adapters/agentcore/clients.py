"""boto3's clients: made off the event loop, one for each region and endpoint, closed when nobody uses them any more (I20)."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from adapters.agentcore.lines import close_connections, own_connections
from adapters.agentcore.profile import Profile
from adapters.agentcore.threads import in_thread
from adapters.sdk.errors import CapacityError, ConfigurationError, HarnessError

CONNECT_SECONDS = 10
CALL_SECONDS = 10
"""A call that is no stream: StopRuntimeSession, GetHarness."""
ROOM_SECONDS = 30.0
"""How long a turn waits for one of `max_connections` streams to end (I35)."""
DATA, CONTROL = "bedrock-agentcore", "bedrock-agentcore-control"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """What a client is made for."""

    region: str
    endpoint_url: str = field(repr=False)
    control_endpoint_url: str = field(repr=False)
    read_timeout_seconds: int
    max_connections: int


@dataclass(slots=True)
class Connections:
    """The clients of one address. `streams` has a short life of calls beside it in `calls`, so that neither waits for the other's connections."""

    address: Address
    streams: Any
    calls: Any
    control: Any
    room: asyncio.Semaphore

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Any, None]:
        """The client for one stream, once there is room. Raises CapacityError if there is none in time."""
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self.room.acquire()
        except TimeoutError:
            raise CapacityError(
                f"All {self.address.max_connections} streams of this adapter to the provider are in use.",
                code="streams_in_use",
                retry_after=ROOM_SECONDS,
            ) from None
        try:
            yield self.streams
        finally:
            self.room.release()

    def close(self) -> None:
        """Closes what is open. Blocks shortly."""
        for client in (self.streams, self.calls, self.control):
            close_connections(client)


class Clients:
    """Those of one adapter process."""

    def __init__(self) -> None:
        # I18: what they log below that has requests in it, and with them ARNs and prompts.
        for name in ("boto3", "botocore", "urllib3"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._open: dict[Address, _Shared] = {}
        self._session: Any = None

    async def acquire(self, profile: Profile) -> Connections:
        """The clients of a profile, for one more user; each is to be released once. Raises ConfigurationError without a region."""
        address = _address(profile)
        shared = self._open.get(address)
        if shared is None:
            making = asyncio.ensure_future(in_thread(lambda: self._made(address), "client"))
            shared = self._open[address] = _Shared(making)
        # Counted before the wait: whoever releases meanwhile is not the last.
        shared.users += 1
        try:
            return await asyncio.shield(shared.making)
        except BaseException:
            if self._left(address, shared):
                shared.making.add_done_callback(_close_unwanted)
            raise

    async def release(self, connections: Connections) -> None:
        """One user less; the last one closes."""
        shared = self._open[connections.address]
        if self._left(connections.address, shared):
            await in_thread(connections.close, "close")

    def _left(self, address: Address, shared: "_Shared") -> bool:
        """One user less; whether it was the last."""
        shared.users -= 1
        if shared.users == 0 and self._open.get(address) is shared:
            del self._open[address]
        return shared.users == 0

    def _made(self, address: Address) -> Connections:
        try:
            # One session for all: what it read of the service's model is not read again.
            self._session = self._session or cast("Any", boto3).session.Session()
            return Connections(
                address,
                self._client(DATA, address.region, address.endpoint_url, address.read_timeout_seconds, address),
                self._client(DATA, address.region, address.endpoint_url, CALL_SECONDS, address),
                self._client(CONTROL, address.region, address.control_endpoint_url, CALL_SECONDS, address),
                asyncio.Semaphore(address.max_connections),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                "No client of the provider can be made with the profile's region and endpoint_url.",
                code="profile_invalid",
                diagnostic=type(error).__name__,
            ) from None

    def _client(self, service: str, region: str, endpoint: str, read_timeout: int, address: Address) -> Any:
        config = Config(
            # I11: nothing is sent twice by the SDK; what may be sent again is decided where it is known that nothing ran.
            retries={"total_max_attempts": 1},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_timeout,
            max_pool_connections=address.max_connections,
        )
        client = self._session.client(service, region_name=region, endpoint_url=endpoint or None, config=config)
        own_connections(client)
        return client


@dataclass(slots=True)
class _Shared:
    """Clients that are there or on their way, and how many want them."""

    making: asyncio.Future[Connections]
    users: int = 0


def _close_unwanted(making: asyncio.Future[Connections]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def region_of(profile: Profile) -> str:
    """The profile's region, else the environment's. Raises ConfigurationError without one."""
    region = profile.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise ConfigurationError(
            "There is no region: give the profile's setting region, or set AWS_REGION for the adapter's process.",
            code="region_missing",
        )
    return region


async def called(work: Callable[[], T], fault: Callable[[BaseException], HarnessError]) -> T:
    """A short call in a thread; what it raises is classified."""
    try:
        return await in_thread(work)
    except Exception as error:  # noqa: BLE001 - whatever boto3 raises is classified
        raise fault(error) from None


def _address(profile: Profile) -> Address:
    return Address(
        region_of(profile),
        profile.endpoint_url,
        profile.control_endpoint_url or profile.endpoint_url,
        profile.read_timeout_seconds,
        profile.max_connections,
    )
