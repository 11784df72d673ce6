"""One MongoDB database: the client, its bounds, what its errors mean to a caller (architecture, Stores; I34, I35).

Writes are acknowledged by a majority and journaled, reads go to the primary and see what a majority has. A write the driver repeats carries the
number of the first attempt, and a replica set answers with what became of that one; a single server has no such
memory, there the driver repeats reads only. Either way a write that ends in `StoreUnavailable` may have happened.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidOperation,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)

from services.common.logs import get_logger
from services.common.store.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable
from services.common.store.mongo_address import MongoAddress
from services.common.store.options import StoreOptions

T = TypeVar("T")
Stored = dict[str, Any]
"""A document as it lies in MongoDB."""

MAX_CALLS: Final = 4096
"""Calls that are being answered or wait for a connection, at most (I35)."""
CONNECT_SECONDS: Final = 2.0
SELECT_SECONDS: Final = 2.0
"""How long a call waits for a server that takes writes, at most."""
HEARTBEAT_SECONDS: Final = 2.0
"""Between two looks at a server that nobody needs now; one that is missed is looked for twice a second."""

_AUTHENTICATION_FAILED: Final = 18
_UNAUTHORIZED: Final = 13
_ACCESS: Final = (_UNAUTHORIZED, _AUTHENTICATION_FAILED)
_OUT_OF_DISK_SPACE: Final = 14031
# BadValue (a hint to an index that is not there too), FailedToParse, TypeMismatch, DollarPrefixedFieldName, CommandNotFound,
# CannotCreateIndex, InvalidNamespace, IndexOptionsConflict, IndexKeySpecsConflict, NotImplemented, BSONObjectTooLarge.
_OWN_TROUBLE: Final = frozenset({2, 9, 14, 52, 59, 67, 73, 85, 86, 238, 10334})
_log = get_logger(__name__)


class MongoEngine:
    """Answers calls on one database. Several stores of one service share it, and so its connections."""

    def __init__(self, client: AsyncMongoClient[Stored], address: MongoAddress, options: StoreOptions) -> None:
        """Use `connect`."""
        self._client = client
        self._database: AsyncDatabase[Stored] = client.get_database(address.database)
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False
        self.namespace = options.namespace
        self.shown = address.shown

    @classmethod
    async def connect(cls, address: MongoAddress, options: StoreOptions) -> MongoEngine:
        """Connect and look at the server.

        Errors: `StoreRefused` with what to change if there is none, it is too old, or it does not know the user.
        """
        try:
            with warnings.catch_warnings():
                # The driver leaves out an option it does not understand, be it tls, and warns.
                warnings.simplefilter("error", UserWarning)
                client = _client(address, options)
        except (ConfigurationError, InvalidURI, ValueError, TypeError, UserWarning):
            # The driver's own message may quote a part of the address.
            raise StoreRefused(
                "store address mongodb://…: the driver cannot read it; write mongodb://user:password@host:port/database with every special "
                "character of user and password as %XX, and options as MongoDB's manual names them"
            ) from None
        engine = cls(client, address, options)
        async with AsyncExitStack() as unless_it_works:
            unless_it_works.push_async_callback(client.close)
            try:
                _report_kind(address, await engine.call(lambda: client.admin.command("hello")))
            except (StoreError, PyMongoError) as error:
                raise _refusal(address, options, error) from None
            unless_it_works.pop_all()
        return engine

    def collection(self, name: str) -> AsyncCollection[Stored]:
        """A collection of this service, with the service's name before its own."""
        return self._database.get_collection(f"{self.namespace}_{name}")

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Answer one call. A caller that is cancelled leaves it going, so that its connection lives on.

        Errors: `StoreUnavailable`, `StoreFull`; as they are: `DuplicateKeyError`, `BulkWriteError`, and what says that the call itself was wrong.
        """
        if self._closed:
            raise StoreUnavailable(f"{self.shown}: the store is closed")
        if len(self._running) >= MAX_CALLS:
            raise StoreUnavailable(f"{self.shown}: {MAX_CALLS} calls wait already")
        running = asyncio.ensure_future(self.answered(operation))
        self._running.add(running)
        running.add_done_callback(self._forget)
        return await asyncio.shield(running)

    def _forget(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # its caller may be gone, and then nobody else looks

    async def prepare(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The same while the store is opened: what the server refuses then, it will refuse again. Errors: `StoreRefused` too."""
        try:
            return await self.call(operation)
        except (OperationFailure, StoreUnavailable) as error:
            refused = error.__cause__ if isinstance(error, StoreUnavailable) else error
            if isinstance(refused, OperationFailure) and (refused is error or refused.code in _ACCESS):
                raise _refused(self.shown, refused) from None
            raise

    async def answered(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The same for what is a part of a call already, and is not counted again."""
        try:
            return await operation()
        except PyMongoError as error:
            raise self.failure(error) from error

    def failure(self, error: PyMongoError) -> Exception:
        """What the caller hears of an error of the driver."""
        if isinstance(error, (DuplicateKeyError, BulkWriteError)):
            return error
        if isinstance(error, OperationFailure) and not isinstance(error, WriteConcernError):
            code = error.code or 0
            if is_full(code, str(error)):
                return StoreFull(
                    f"{self.shown}: the server has no room left; free space on its disk, or raise its quota"
                )
            if code in _OWN_TROUBLE:
                return error
            return StoreUnavailable(f"{self.shown}: {type(error).__name__} {code}: {_said(error)}")
        if isinstance(error, (ConnectionFailure, WriteConcernError, InvalidOperation)) or error.timeout:
            return StoreUnavailable(f"{self.shown}: {type(error).__name__}: {_said(error)}")
        return error

    async def close(self) -> None:
        """Answer what was accepted, then let go of the connections. Idempotent."""
        self._closed = True
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.close()


def is_full(code: int, message: str) -> bool:
    """Whether the server says that it has no room. Only MongoDB itself has a number for it."""
    return code == _OUT_OF_DISK_SPACE or "disk is full" in message or "space quota" in message


def _client(address: MongoAddress, options: StoreOptions) -> AsyncMongoClient[Stored]:
    milliseconds = int(options.timeout_seconds * 1000)
    return AsyncMongoClient(
        address.url,
        appname=f"harness-{options.namespace}",
        w="majority",  # I34: acknowledged means that a failover does not lose it,
        journal=True,  # nor a power cut
        readConcernLevel="majority",
        readPreference="primary",
        retryWrites=True,
        retryReads=True,
        timeoutMS=milliseconds,  # I35: of the whole call
        # Whoever waits here has a deadline of its own, and should hear what is wrong before it.
        serverSelectionTimeoutMS=int(min(SELECT_SECONDS, options.timeout_seconds) * 1000),
        connectTimeoutMS=int(min(CONNECT_SECONDS, options.timeout_seconds) * 1000),
        heartbeatFrequencyMS=int(HEARTBEAT_SECONDS * 1000),
        maxPoolSize=options.pool_size,
        document_class=dict[str, Any],
    )


def _report_kind(address: MongoAddress, hello: Stored) -> None:
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        _log.warning(
            "store_not_replicated",
            store=address.shown,
            meaning="one server keeps everything: nothing takes over when it is away, and what it held is lost with its disk",
            remedy="use a replica set of three where that matters",
        )


def _refusal(address: MongoAddress, options: StoreOptions, error: Exception) -> Exception:
    cause = error.__cause__ if isinstance(error, StoreError) else error
    if isinstance(cause, ServerSelectionTimeoutError):
        return StoreRefused(
            f"no MongoDB server that takes writes answered at {address.shown} within {min(SELECT_SECONDS, options.timeout_seconds):g} s; start it, or correct "
            f"host, port, replicaSet and tls of the address"
        )
    if isinstance(cause, OperationFailure):
        return _refused(address.shown, cause)
    if isinstance(cause, ConfigurationError):
        return StoreRefused(f"the server at {address.shown} cannot be used: {_said(cause)}")
    return error


def _refused(shown: str, error: OperationFailure) -> StoreRefused:
    if error.code == _AUTHENTICATION_FAILED:
        return StoreRefused(
            f"the server at {shown} does not accept the user or its password; correct them, or authSource"
        )
    if error.code == _UNAUTHORIZED:
        return StoreRefused(
            f"the user may not do what is needed at {shown}; give it the role readWrite on this database"
        )
    return StoreRefused(f"the server at {shown} refuses: {_said(error)}")


def _said(error: PyMongoError) -> str:
    """The driver's words without what it appends: the whole answer may quote values of a document."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return text if len(text) <= 300 else text[:300] + "…"
