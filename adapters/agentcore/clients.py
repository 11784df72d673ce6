"""boto3's clients: made off the event loop, one for each region and endpoint, closed when nobody uses them any more (I20)."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from adapters.agentcore.failures import CREDENTIAL_ERRORS, failure_of
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
    """The clients of one address. Calls that are no streams have clients of their own, so that neither waits for the other's connections; most turns make
    none, so those are made when they are first wanted.
    """

    address: Address
    streams: Any
    room: asyncio.Semaphore
    _make: Callable[[str, Address], Any] = field(repr=False)
    _made: dict[str, Any] = field(default_factory=dict[str, Any])
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def calls(self) -> Any:
        """For short calls of the data plane. Makes the client when it is first asked for, which takes a while: not on the event loop."""
        return self._later(DATA)

    @property
    def control(self) -> Any:
        """For the control plane, as `calls`."""
        return self._later(CONTROL)

    def _later(self, service: str) -> Any:
        with self._making:
            if service not in self._made:
                self._made[service] = self._make(service, self.address)
            return self._made[service]

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
        with self._making:
            clients = [self.streams, *self._made.values()]
        for client in clients:
            close_connections(client)


class Clients:
    """Those of one adapter process."""

    def __init__(self) -> None:
        # I18: what they log below that has requests in it, and with them ARNs and prompts.
        for name in ("boto3", "botocore", "urllib3"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._open: dict[Address, _Shared] = {}
        self._session: Any = None
        # boto3's session is not for several threads at once.
        self._making = threading.Lock()

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
            streams = self._client(DATA, address.endpoint_url, address.read_timeout_seconds, address)
        except CREDENTIAL_ERRORS as error:
            raise failure_of(error) from None
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                "No client of the provider can be made with the profile's region and endpoint_url.",
                code="profile_invalid",
                diagnostic=type(error).__name__,
            ) from None
        return Connections(address, streams, asyncio.Semaphore(address.max_connections), self._for_calls)

    def _for_calls(self, service: str, address: Address) -> Any:
        endpoint = address.control_endpoint_url if service == CONTROL else address.endpoint_url
        return self._client(service, endpoint, CALL_SECONDS, address)

    def _client(self, service: str, endpoint: str, read_timeout: int, address: Address) -> Any:
        config = Config(
            # I11: nothing is sent twice by the SDK; what may be sent again is decided where it is known that nothing ran.
            retries={"total_max_attempts": 1},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_timeout,
            max_pool_connections=address.max_connections,
        )
        with self._making:
            # One session for all: what it read of the service's model is not read again.
            self._session = self._session or cast("Any", boto3).session.Session()
            client = self._session.client(
                service, region_name=address.region, endpoint_url=endpoint or None, config=config
            )
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
