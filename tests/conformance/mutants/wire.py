"""The wire between the kit and a correct adapter. All calls pass through it, both ways, and a mutant changes what it wants.

The kit sees one endpoint. Behind it is the reference adapter, served in this process; the facades that its runtimes call are the wire's too, and pass
on to the kit's. So a mutant breaks a rule as any adapter would, in whatever language: on the wire, and nowhere else.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.rpc import error_details_pb2, status_pb2

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.serve import AdapterServer, serve_adapter, serve_worker
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import capability_pb2
from harness.files.v1 import file_service_pb2
from harness.runtime.v1 import runtime_service_pb2
from harness.state.v1 import thread_state_service_pb2
from harness.tool.v1 import tool_broker_service_pb2
from harness.worker.v1 import worker_service_pb2

OPTIONS = [
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
]
Responses = AsyncGenerator[Any, None]
FLUSH_SECONDS = 30.0
TRAILER = "grpc-status-details-bin"


class Refused(Exception):
    """A status in the place of an answer; `reason` empty: without any details."""

    def __init__(self, code: grpc.StatusCode, reason: str = "", message: str = "The mutant refuses.") -> None:
        super().__init__(message)
        self.code = code
        self.trailers: tuple[tuple[str, bytes], ...] = ()
        if reason:
            status = status_pb2.Status(code=code.value[0], message=message)
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="harness"))
            self.trailers = ((TRAILER, status.SerializeToString()),)


@dataclass
class Call:
    """One call on its way. `request` is the kit's (or the adapter's, of a facade), and may be changed before `proceed` passes it on."""

    method: str
    request: Any
    wire: "Wire"
    metadata: list[tuple[str, Any]]
    # Awaitable, or an async iterator for a stream of responses; takes another request in the place of this one.
    proceed: Callable[..., Any]

    @property
    def run_id(self) -> str:
        """The run it is about, or nothing."""
        first: Any = self.request[0] if isinstance(self.request, list) else self.request
        return first.fence.run_id if hasattr(first, "fence") else ""


class Mutation:
    """What a mutant does to calls: nothing, until a method is overridden. One object per server, so it may remember."""

    async def unary(self, call: Call) -> Any:
        """Answers a call with one response."""
        return await call.proceed()

    async def stream(self, call: Call) -> Responses:
        """Answers a call with a stream of responses."""
        async for response in call.proceed():
            yield response


@dataclass
class Wire:
    """Serves `mutation` in front of the reference adapter, on a unix socket: `address`."""

    mutation: Mutation
    worker: bool = False
    # Capabilities that the adapter behind has, whether it claims them or not.
    claims: tuple[str, ...] = ()
    address: str = ""
    # Offset of the last draft of each run as the adapter counts: what a mutant adds past it is never acknowledged to it.
    last: dict[str, int] = field(default_factory=dict[str, int])
    _facades: dict[str, str] = field(default_factory=dict[str, str])
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict[str, grpc.aio.Channel])

    async def __aenter__(self) -> "Wire":
        self._folder = tempfile.TemporaryDirectory(prefix="hm-")
        folder = Path(self._folder.name)
        serve = serve_worker if self.worker else serve_adapter
        self._adapter: AdapterServer = await serve(
            ReferenceAdapter, listen=f"unix:{folder}/a", limits=HostLimits(stop_seconds=1.0)
        )
        self.address, self._facade_address = f"unix:{folder}/w", f"unix:{folder}/f"
        lifecycle = [runtime_service_pb2, worker_service_pb2 if self.worker else adapter_service_pb2]
        self._servers = [
            await self._serve(self.address, lifecycle, lambda service: self._adapter.address),
            await self._serve(
                self._facade_address,
                [thread_state_service_pb2, tool_broker_service_pb2, file_service_pb2],
                # harness.<audience>.v1.Service
                lambda service: self._facades[service.split(".")[1]],
            ),
        ]
        self._stopping = asyncio.create_task(self._stop_with_adapter())
        return self

    async def _stop_with_adapter(self) -> None:
        # A worker that was shut down takes no call any more; those under way, the Shutdown itself among them, are answered.
        await self._adapter.stop_requested.wait()
        await self._servers[0].stop(FLUSH_SECONDS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.cancel()
        for server in self._servers:
            await server.stop(0)
        await self._adapter.stop(0)
        for channel in self._channels.values():
            await channel.close()
        self._folder.cleanup()

    async def _serve(self, address: str, modules: list[Any], behind: Callable[[str], str]) -> grpc.aio.Server:
        server = grpc.aio.server(options=[*OPTIONS, ("grpc.so_reuseport", 0)])
        for module in modules:
            services: list[ServiceDescriptor] = list(module.DESCRIPTOR.services_by_name.values())
            for service in services:
                handlers = {method.name: self._handler(method, behind) for method in service.methods}
                made: Any = grpc.method_handlers_generic_handler(service.full_name, handlers)
                server.add_generic_rpc_handlers((made,))
        server.add_insecure_port(address)
        await server.start()
        return server

    # --- one method ---

    def _handler(self, method: MethodDescriptor, behind: Callable[[str], str]) -> Any:
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        service = method.containing_service.full_name
        path = f"/{service}/{method.name}"

        def stub(kind: str) -> Any:
            channel = self.channel(behind(service))
            return getattr(channel, kind)(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )

        def call_of(given: Any, context: Any, kind: str) -> Call:
            metadata = [(key, value) for key, value in context.invocation_metadata() if key == "authorization"]
            call = Call(method.name, given, self, metadata, proceed=lambda: None)

            def pass_on(changed: Any = None) -> Any:
                sent = call.request if changed is None else changed
                self._redirect(method.name, sent)
                return stub(kind)(
                    iter(sent) if kind == "stream_unary" else sent,
                    metadata=call.metadata,
                    timeout=context.time_remaining(),
                )

            call.proceed = (
                pass_on if kind != "unary_stream" else lambda changed=None: self._noted(call, pass_on(changed))
            )
            return call

        async def unary(given: Any, context: Any) -> Any:
            kind = "stream_unary" if method.client_streaming else "unary_unary"
            try:
                if method.client_streaming:
                    given = [message async for message in given]
                answer = await self.mutation.unary(call_of(given, context, kind))
                if method.name == "GetDescriptor":
                    self._claim(answer.descriptor)
                return answer
            except (grpc.aio.AioRpcError, Refused) as error:
                await _abort(context, error)

        async def stream(given: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(self.mutation.stream(call_of(given, context, "unary_stream"))) as messages:
                    async for message in messages:
                        yield message
            except (grpc.aio.AioRpcError, Refused) as error:
                await _abort(context, error)

        codec: dict[str, Any] = {
            "request_deserializer": request.FromString,
            "response_serializer": response.SerializeToString,
        }
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(unary, **codec)
        return grpc.unary_unary_rpc_method_handler(unary, **codec)

    def _claim(self, descriptor: descriptor_pb2.Descriptor) -> None:
        for key in self.claims:
            descriptor.capabilities[key].level = capability_pb2.CAPABILITY_LEVEL_NATIVE

    def _redirect(self, method: str, request: Any) -> None:
        if method in ("CreateRuntime", "Bind"):
            for facade in request.context.facades:
                if facade.address != self._facade_address:
                    self._facades[facade.audience] = facade.address
                    facade.address = self._facade_address
        elif method == "AckRun":
            last = self.last.get(request.fence.run_id, 0)
            request.through_offset = min(request.through_offset, last) if last else request.through_offset

    async def _noted(self, call: Call, responses: Any) -> AsyncIterator[Any]:
        try:
            async for response in responses:
                if hasattr(response, "batch") and response.batch.drafts:
                    through = response.batch.first_offset + len(response.batch.drafts) - 1
                    self.last[call.run_id] = max(self.last.get(call.run_id, 0), through)
                yield response
        finally:
            # Whoever leaves on this side leaves on the other.
            responses.cancel()

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to an address behind the wire."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=OPTIONS)
        return self._channels[address]

    def facade(self, audience: str) -> grpc.aio.Channel:
        """A channel to the kit's facade."""
        return self.channel(self._facades[audience])

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What the correct adapter says of itself; a worker is not asked."""
        return self._adapter.adapter.descriptor

    @property
    def behind(self) -> grpc.aio.Channel:
        """A channel to the correct adapter, past the mutant."""
        return self.channel(self._adapter.address)


async def _abort(context: Any, error: "grpc.aio.AioRpcError | Refused") -> None:
    if isinstance(error, Refused):
        await context.abort(error.code, str(error), error.trailers)
        return
    trailers = tuple((key, value) for key, value in error.trailing_metadata() or () if key == TRAILER)
    await context.abort(error.code(), error.details() or "", trailers)
