"""The endpoint under certification: one channel, its three services, and the eye on everything that comes back."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from conformance.failure import Broken, Refused
from conformance.plane.canary import Canaries
from conformance.plane.refusals import Refusal, read_refusal
from harness.adapter.v1 import adapter_service_pb2_grpc
from harness.runtime.v1 import runtime_service_pb2_grpc
from harness.worker.v1 import worker_service_pb2_grpc

OPTIONS = [
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
]


class Target:
    """Calls go through the generated stubs; every answer is searched for planted secrets before it is parsed."""

    def __init__(
        self, address: str, canaries: Canaries, token: str = "", refusals: list[Refusal] | None = None
    ) -> None:
        self.address = address
        self.canaries = canaries
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        # Every refusal that was seen, for the rule on their form; one list for all targets of a certification.
        self.refusals: list[Refusal] = [] if refusals is None else refusals
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        watched: Any = _WatchedChannel(self._channel, canaries)
        self.adapter = adapter_service_pb2_grpc.AdapterServiceStub(watched)
        self.runtime = runtime_service_pb2_grpc.RuntimeServiceStub(watched)
        self.worker = worker_service_pb2_grpc.WorkerServiceStub(watched)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def note(self, error: grpc.aio.AioRpcError, method: str) -> Refusal:
        """Reads a refusal, searches it for planted secrets, and keeps it. At most 2,000 are kept."""
        refusal = read_refusal(error, method)
        self.canaries.look(f"the status of {method}", (error.details() or "").encode())
        for _, value in error.trailing_metadata() or ():
            self.canaries.look(f"the trailers of {method}", value if isinstance(value, bytes) else str(value).encode())
        if len(self.refusals) < 2_000:
            self.refusals.append(refusal)
        return refusal

    async def ask(self, method: str, call: Awaitable[Any]) -> Any:
        """The answer of a call that must succeed. Raises Refused, or Broken where it is garbled."""
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            refusal = self.note(error, method)
            raise Refused(f"{method} was refused: {refusal}: {refusal.message[:200]}") from None
        if isinstance(answer, Garbled):
            raise Broken(f"A response of {method} is no message of its type.")
        return answer

    async def refused(self, method: str, call: Awaitable[Any]) -> Refusal:
        """How a call was refused that must be. Raises Broken if it was not."""
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return self.note(error, method)
        raise Broken(f"{method} was answered, it should have been refused.")

    async def must_refuse(self, method: str, call: Awaitable[Any], code: str, reason: str = "") -> Refusal:
        """As `refused`, with just this status code and, if given, this reason."""
        refusal = await self.refused(method, call)
        if refusal.code != code or (reason and refusal.reason != reason):
            wanted = f"{code} {reason!r}" if reason else code
            raise Broken(f"{method} was refused with {refusal}, it should have been with {wanted}.")
        return refusal


class Garbled:
    """In the place of a response that is no message of its type. (What a deserialiser raises, the library writes to its log and loses.)"""


class _WatchedChannel:
    """A channel whose responses are looked at as bytes."""

    def __init__(self, channel: grpc.aio.Channel, canaries: Canaries) -> None:
        self._channel: Any = channel
        self._canaries = canaries

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """A unary call."""
        read = self._watched(method, response_deserializer)
        return self._channel.unary_unary(
            method, request_serializer=request_serializer, response_deserializer=read, **more
        )

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """A call with a stream of responses."""
        read = self._watched(method, response_deserializer)
        return self._channel.unary_stream(
            method, request_serializer=request_serializer, response_deserializer=read, **more
        )

    def _watched(self, method: str, parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        name = method.rpartition("/")[2]

        def read(data: bytes) -> Any:
            self._canaries.look(f"a response of {name}", data)
            try:
                return parse(data)
            except DecodeError:
                return Garbled()

        return read
