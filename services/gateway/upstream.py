"""The gRPC side: calls to catalog, runs and sessions, made from the descriptors of the operations (architecture, "gateway")."""

# pyright: standard
# Methods are made from descriptors, so their messages are untyped here; the health package carries no types.

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from harness.event.v1 import event_pb2
from harness.run.v1 import run_service_pb2
from services.common.channels import Peer, connect
from services.common.ids import place_in
from services.gateway.operations import Operation

RUNS = "harness.run.v1.RunService"
HEALTH_TIMEOUT_SECONDS = 2.0
# Reads may be repeated by the channel while their service restarts.
_IDEMPOTENT_VERBS = ("Get", "List", "Validate")
_REPEATABLE = frozenset(("CancelRun", "ResumeRun", "DisableAgent"))
_DEFAULT_TIMEOUT_SECONDS = 15.0
_AREAS = {"run": "runs", "files": "sessions"}
_TIMEOUT_SECONDS = {
    "StartRun": 30.0,
    "SaveAgent": 30.0,
    "CancelRun": 60.0,
    "CancelActiveRun": 60.0,
    "ClearSession": 90.0,
}


class Upstream:
    """One peer per service and one method per operation."""

    def __init__(
        self, addresses: Mapping[str, str], token: SecretStr, operations: Iterable[Operation], invoke_timeout: float
    ) -> None:
        """`addresses`: by area (`catalog`, `runs`, `sessions`). Must be made on the event loop."""
        operations = tuple(operations)
        idempotent = [each.rpc for each in operations if each.name.startswith(_IDEMPOTENT_VERBS)]
        self._peers: dict[str, Peer] = {
            area: connect(
                address, token, idempotent_methods=[rpc for rpc in idempotent if _area(rpc) == area], exchange=True
            )
            for area, address in addresses.items()
        }
        self._methods: dict[str, Any] = {each.rpc: self._method(each) for each in operations}
        self._timeouts = {**_TIMEOUT_SECONDS, "Invoke": invoke_timeout}
        self._watch = self._methods[f"{RUNS}/WatchRun"]

    @property
    def areas(self) -> tuple[str, ...]:
        return tuple(self._peers)

    def _method(self, operation: Operation) -> Any:
        channel = self._peers[_area(operation.rpc)].channel
        to_client = channel.unary_stream if operation.streams or operation.downloads else channel.unary_unary
        make = channel.stream_unary if operation.uploads else to_client
        return make(
            f"/{operation.rpc}",
            request_serializer=message_factory.GetMessageClass(operation.request).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(operation.response).FromString,
        )

    async def call(self, operation: Operation, request: Message, subject: str, *, timeout: float | None = None) -> Any:
        """One unary call on behalf of a subject. Raises `HarnessError`."""
        if timeout is None:
            timeout = self._timeouts.get(operation.name, _DEFAULT_TIMEOUT_SECONDS) + float(getattr(request, "wait", 0))
        return await self._peers[_area(operation.rpc)].call(
            self._methods[operation.rpc],
            request,
            subject=subject,
            timeout=timeout,
            idempotent=_may_be_repeated(operation, request),
        )

    async def upload(
        self, operation: Operation, messages: AsyncIterator[Message], subject: str, *, timeout: float
    ) -> Any:
        """One call with a stream of messages; each is asked for when the one before was taken. Raises `HarnessError`."""
        peer = self._peers[_area(operation.rpc)]
        return await peer.call(self._methods[operation.rpc], messages, subject=subject, timeout=timeout)

    def download(self, operation: Operation, request: Message, subject: str, *, timeout: float) -> AsyncGenerator[Any]:
        """The messages of a call. Close it to cancel the call. Raises `HarnessError`."""
        peer = self._peers[_area(operation.rpc)]
        return peer.stream(self._methods[operation.rpc], request, subject=subject, timeout=timeout)

    async def run(self, run_id: str, subject: str) -> Any:
        """The run, for a caller who owns it; `not_found` for anybody else (I2)."""
        request = run_service_pb2.GetRunRequest(run_id=run_id)
        response = await self._peers["runs"].call(
            self._methods[f"{RUNS}/GetRun"], request, subject=subject, timeout=_DEFAULT_TIMEOUT_SECONDS
        )
        return response.run

    async def page(self, run_id: str, subject: str, after: int, limit: int) -> list[event_pb2.Event]:
        """Events after a cursor, what is there now, at most `limit` (1,000) and about 1 MiB."""
        request = run_service_pb2.ListEventsRequest(run_id=run_id, after=after, limit=limit)
        response = await self._peers["runs"].call(
            self._methods[f"{RUNS}/ListEvents"], request, subject=subject, timeout=_DEFAULT_TIMEOUT_SECONDS
        )
        return list(response.events)

    async def watch(self, run_id: str, subject: str, after: int) -> AsyncGenerator[Sequence[event_pb2.Event]]:
        """Batches of events after a cursor as they become durable; ends after the terminal. Close it to cancel the call."""
        request = run_service_pb2.WatchRunRequest(run_id=run_id, after=after)
        # Where the run is most likely executed, its events take no way over bus and log; any other replica has them as well.
        near = place_in(run_id)
        batches = self._peers["runs"].stream(self._watch, request, subject=subject, timeout=None, near=near)
        async with aclosing(batches):
            async for batch in batches:
                yield batch.events

    async def is_serving(self, area: str) -> bool:
        """What the service's own health says. Raises `HarnessError` when it does not answer."""
        peer = self._peers[area]
        stub: Any = health_pb2_grpc.HealthStub(peer.channel)
        answer = await peer.call(stub.Check, health_pb2.HealthCheckRequest(), timeout=HEALTH_TIMEOUT_SECONDS)
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()


def _may_be_repeated(operation: Operation, request: Message) -> bool:
    """Whether another replica may be asked the same where the answer of the first was lost: what names its run by an id of the client's (I6), and what
    a repetition leaves as it is (I12, I24). Reads may be as well; the channels know them.
    """
    return operation.name in _REPEATABLE or bool(getattr(request, "client_request_id", ""))


def _area(rpc: str) -> str:
    # `harness.run.v1.RunService/…` is served by runs, `harness.files.v1.…` by sessions, `harness.catalog.v1.…` by catalog.
    return _AREAS.get(rpc.split(".")[1], "catalog")
