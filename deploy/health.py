"""Whether the process of this container serves: exit code 0 or 1. `--http` for the gateway and the model egress, gRPC health otherwise.

It asks the address in HARNESS_LISTEN, or HARNESS_FACADE_LISTEN where there is no other, as the process itself was told.
"""

import http.client
import os
import socket
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 3.0
EVERYWHERE = ("0.0.0.0", "[::]", "")  # noqa: S104 - recognised, not listened on


def reachable(address: str) -> str:
    """The address to dial of a process that listens on all of them."""
    host, colon, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if colon and host in EVERYWHERE else address


def serves_grpc(address: str) -> bool:
    """What gRPC health says of the whole process."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


def serves_http(address: str) -> bool:
    """What its liveness says."""
    connection = (
        UnixConnection(address.removeprefix("unix:"))
        if address.startswith("unix:")
        else http.client.HTTPConnection(address, timeout=SECONDS)
    )
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    listen = reachable(os.environ.get("HARNESS_LISTEN") or os.environ.get("HARNESS_FACADE_LISTEN", ""))
    sys.exit(0 if (serves_http if "--http" in sys.argv[1:] else serves_grpc)(listen) else 1)
