"""The connection a stream is read from, so that another thread can cut it (I12).

Closing a response waits for the thread that reads it, until the read timeout. Shutting its socket down ends the read at once. A connection is a stream's
from its request until the next request on it, so a late cut never meets another stream's.
"""

import contextlib
import socket
import threading
from typing import Any

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool

_ownership = threading.Lock()
_of_thread = threading.local()


class LineCutError(Exception):
    """The stream was cut before or while it was opened."""


class Line:
    """What one thread talks over. `cut` may be called from any thread, at any time, more than once."""

    def __init__(self) -> None:
        self._connection: Any = None
        self.is_cut = False

    def __enter__(self) -> "Line":
        _of_thread.line = self
        return self

    def __exit__(self, *_: object) -> None:
        _of_thread.line = None
        with _ownership:
            if self._connection is not None and self._connection.line is self:
                self._connection.line = None
            self._connection = None

    def take(self, connection: Any) -> None:
        """The connection is this stream's from here."""
        with _ownership:
            if self.is_cut:
                raise LineCutError
            self._connection = connection
            connection.line = self
            connection.socket_of_line = connection.sock

    def cut(self) -> None:
        """Ends whatever is read or sent."""
        with _ownership:
            self.is_cut = True
            connection = self._connection
            if connection is None or connection.line is not self or connection.socket_of_line is None:
                return
            # It may be gone already: then there is nothing to cut.
            with contextlib.suppress(OSError):
                connection.socket_of_line.shutdown(socket.SHUT_RDWR)


class _Owned:
    """What makes a connection of urllib3 known to the line of its thread."""

    line: Line | None = None
    socket_of_line: socket.socket | None = None

    def connect(self) -> None:
        super().connect()  # type: ignore[misc] - a mix-in of connections
        self._taken()

    def request(self, *args: Any, **more: Any) -> Any:
        self._taken()
        return super().request(*args, **more)  # type: ignore[misc] - a mix-in of connections

    def _taken(self) -> None:
        line: Line | None = getattr(_of_thread, "line", None)
        if line is not None:
            line.take(self)


class _Connection(_Owned, AWSHTTPConnection):
    pass


class _SecureConnection(_Owned, AWSHTTPSConnection):
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def close_connections(client: Any) -> None:
    """Closes a client and its idle connections now: left to itself, it does so only once nothing refers to its pools any more (I20)."""
    http = client._endpoint.http_session
    for manager in (http._manager, *http._proxy_managers.values()):
        for key in manager.pools.keys():  # noqa: SIM118 - it is no mapping one can iterate
            pool = manager.pools.get(key)
            if pool is not None:
                pool.close()
    client.close()


def own_connections(client: Any) -> None:
    """Has a client that was never used yet make connections that lines can cut."""
    http = client._endpoint.http_session
    http._pool_classes_by_scheme.update({"http": _Pool, "https": _SecurePool})
