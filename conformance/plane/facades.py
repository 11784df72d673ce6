"""The server of the facades, reachable for the target: on a unix socket beside a unix target, on loopback otherwise."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

import grpc.aio

from conformance.failure import TargetError
from conformance.plane.broker import ToolBrokerServicer
from conformance.plane.canary import Canaries
from conformance.plane.files import AUDIENCE as FILES
from conformance.plane.files import FileServicer
from conformance.plane.grants import Grants
from conformance.plane.state_service import ThreadStateServicer
from harness.common.v1 import capability_token_pb2
from harness.files.v1 import file_service_pb2_grpc
from harness.state.v1 import thread_state_service_pb2_grpc
from harness.tool.v1 import tool_broker_service_pb2_grpc

MODEL = "model"
"""The audience of what stands behind a worker's model."""
_OPTIONS = [
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]


class Facades:
    """State and tools for every run of one certification. `listen`: `host:port` as the target reaches it; empty: chosen by the target's address.

    `model`: where the target reaches its model, which is the driver's affair; empty: nowhere.
    """

    def __init__(self, canaries: Canaries, target: str, listen: str = "", model: str = "") -> None:
        self.model = model
        self.grants = Grants(canaries)
        self._listen = listen
        self._by_socket = target.startswith("unix:") and not listen
        self._folder: Path | None = None
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> "Facades":
        """Serves. Raises TargetError if the address cannot be had."""
        self._server = server = grpc.aio.server(options=_OPTIONS)
        thread_state_service_pb2_grpc.add_ThreadStateServiceServicer_to_server(ThreadStateServicer(self.grants), server)
        tool_broker_service_pb2_grpc.add_ToolBrokerServiceServicer_to_server(ToolBrokerServicer(self.grants), server)
        file_service_pb2_grpc.add_FileServiceServicer_to_server(FileServicer(self.grants), server)
        if self._by_socket:
            self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="hkit-"))
            self.address = f"unix:{self._folder / 'f.sock'}"
            self._bind(server, self.address)
        else:
            listen = self._listen or "127.0.0.1:0"
            self.address = f"{listen.rpartition(':')[0]}:{self._bind(server, listen)}"
        await server.start()
        return self

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        try:
            return server.add_insecure_port(address)
        except RuntimeError:
            raise TargetError(
                f"The kit cannot serve its facades on {address}.", "Give another address with --facades."
            ) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self._server.stop(0)
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder)

    def endpoints(self, *, files: bool) -> list[capability_token_pb2.FacadeEndpoint]:
        """Where a runtime reaches them; `files`: whether its turns may bring any."""
        places = {"state": self.address, "tool": self.address, **({MODEL: self.model} if self.model else {})}
        if files:
            places[FILES] = self.address
        return [
            capability_token_pb2.FacadeEndpoint(audience=audience, address=address)
            for audience, address in places.items()
        ]
