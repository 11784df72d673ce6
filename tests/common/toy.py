"""A small real service for the tests: its contract is built from descriptors, its four methods do what the request says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from buf.validate import validate_pb2
from services.common.caller import caller
from services.common.errors import HarnessError, Reason
from services.common.server import Registration
from services.common.tracing import current_traceparent

CANARY = "canary-7f3a9c"
PACKAGE = "harness.toy.v1"
SERVICE = f"{PACKAGE}.ToyService"
_FIELD = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="harness/toy/v1/toy.proto", package=PACKAGE, syntax="proto3", dependency=["buf/validate/validate.proto"]
    )
    item = file.message_type.add(name="Item")
    item_name = item.field.add(name="name", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    item_name.options.Extensions[validate_pb2.field].string.min_len = 1
    ask = file.message_type.add(name="Ask")
    do = ask.field.add(name="do", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    do.options.Extensions[validate_pb2.field].string.min_len = 1
    count = ask.field.add(name="count", number=2, type=_FIELD.TYPE_INT32, label=_FIELD.LABEL_OPTIONAL)
    count.options.Extensions[validate_pb2.field].int32.lte = 1000
    ask.field.add(
        name="items", number=3, type=_FIELD.TYPE_MESSAGE, type_name=f".{PACKAGE}.Item", label=_FIELD.LABEL_REPEATED
    )
    entry = ask.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=_FIELD.TYPE_MESSAGE, type_name=f".{PACKAGE}.Item", label=_FIELD.LABEL_OPTIONAL
    )
    ask.field.add(
        name="labels",
        number=4,
        type=_FIELD.TYPE_MESSAGE,
        type_name=f".{PACKAGE}.Ask.LabelsEntry",
        label=_FIELD.LABEL_REPEATED,
    )
    answer = file.message_type.add(name="Answer")
    for number, name in enumerate(("text", "subject", "traceparent"), start=1):
        answer.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    service = file.service.add(name="ToyService")
    for name, client, server in (
        ("One", False, False),
        ("Many", False, True),
        ("Collect", True, False),
        ("Chat", True, True),
    ):
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.Ask",
            output_type=f".{PACKAGE}.Answer",
            client_streaming=client,
            server_streaming=server,
        )
    return file


_pool = descriptor_pool.Default()
_pool.AddSerializedFile(_file().SerializeToString())
Item: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.Item"))
Ask: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.Ask"))
Answer: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.Answer"))


class ToyServicer:
    """What `do` names is done for every request; `wait_second` and `hang_second` begin with the second answer of a stream."""

    def __init__(self) -> None:
        self.failures = 0
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()

    async def one(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return await self._act(request, context)

    async def many(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            for number in range(request.count):
                yield await self._act(request, context, second=number > 0)
            if request.do == "endless":
                while True:
                    yield Answer(text="x" * 1000)
        finally:
            self.ended.set()

    async def collect(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        answers = [await self._act(request, context) async for request in requests]
        return answers[-1]

    async def chat(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        async for request in requests:
            yield await self._act(request, context)

    async def _act(self, request: Any, context: grpc.aio.ServicerContext[Any, Any], *, second: bool = False) -> Any:
        match request.do.removesuffix("_second") if second else request.do:
            case "harness_error":
                raise HarnessError(
                    Reason.HARNESS_SESSION_CONFLICT, "A run is active.", metadata={"run_id": "run_1"}, retry_after=1.5
                )
            case "crash":
                raise RuntimeError(f"secret {CANARY}")
            case "crash_chained":
                try:
                    raise ValueError(f"inner {CANARY}")
                except ValueError as error:
                    raise KeyError(CANARY) from error
            case "abort":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "said by the servicer")
            case "cancel_itself":
                raise asyncio.CancelledError
            case "large":
                return Answer(text="x" * (7 << 20))
            case "raise_timeout":
                raise TimeoutError
            case str() as text if text.startswith("raise:"):
                raise HarnessError(Reason(text.removeprefix("raise:")), "said so")
            case "fail_twice":
                self.failures += 1
                if self.failures <= 2:
                    raise HarnessError(Reason.UNAVAILABLE, "Away.")
            case "wait":
                self.waiting.set()
                await self.release.wait()
            case "hang":
                self.waiting.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.ended.set()
            case _:
                pass
        who = caller()
        return Answer(
            text=request.do,
            subject=who.subject or (who.capability.run_id if who.capability else ""),
            traceparent=current_traceparent(),
        )


def add_toy_servicer_to_server(servicer: ToyServicer, server: grpc.aio.Server) -> None:
    codecs = {"request_deserializer": Ask.FromString, "response_serializer": Answer.SerializeToString}
    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(servicer.one, **codecs),
        "Many": grpc.unary_stream_rpc_method_handler(servicer.many, **codecs),
        "Collect": grpc.stream_unary_rpc_method_handler(servicer.collect, **codecs),
        "Chat": grpc.stream_stream_rpc_method_handler(servicer.chat, **codecs),
    }
    # As generated code does it.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    registered: Any = server  # grpc's type stubs do not know the method
    registered.add_registered_method_handlers(SERVICE, handlers)


class ToyStub:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        codecs: dict[str, Any] = {
            "request_serializer": Ask.SerializeToString,
            "response_deserializer": Answer.FromString,
        }
        self.one: Any = channel.unary_unary(f"/{SERVICE}/One", **codecs)
        self.many: Any = channel.unary_stream(f"/{SERVICE}/Many", **codecs)
        self.collect: Any = channel.stream_unary(f"/{SERVICE}/Collect", **codecs)
        self.chat: Any = channel.stream_stream(f"/{SERVICE}/Chat", **codecs)


def registration(servicer: ToyServicer) -> Registration:
    return Registration(SERVICE, add_toy_servicer_to_server, servicer)
