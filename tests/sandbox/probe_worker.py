"""A small real worker for tests: the worker service, and one more call that does inside what a test asks for.

`python -m tests.sandbox.probe_worker --worker --listen unix:/path`
"""

import argparse
import asyncio
import ctypes
import json
import os
import signal
import traceback
from typing import Any

import grpc
import grpc.aio

from harness.worker.v1 import worker_service_pb2, worker_service_pb2_grpc

HARNESS_ID = "probe"
RUN = "/tests.sandbox.Probe/Run"


class Worker(worker_service_pb2_grpc.WorkerServiceServicer):
    def __init__(self) -> None:
        self.incarnation = "inc_" + os.urandom(8).hex()
        # The processes there were when this worker started, as far as it sees.
        self.seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        self.bound: worker_service_pb2.BindRequest | None = None
        self.ended = asyncio.Event()
        # What its shutdown says is left.
        self.left = ""

    async def GetReadiness(self, request: Any, context: Any) -> worker_service_pb2.GetReadinessResponse:
        return worker_service_pb2.GetReadinessResponse(
            ready=True,
            protocol_versions=[1],
            harness_id=HARNESS_ID,
            adapter_version="1",
            bound=self.bound is not None,
            incarnation=self.incarnation,
        )

    async def Bind(self, request: worker_service_pb2.BindRequest, context: Any) -> worker_service_pb2.BindResponse:
        if self.bound is not None and self.bound != request:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "bound")
        self.bound = request
        return worker_service_pb2.BindResponse(incarnation=self.incarnation)

    async def Shutdown(self, request: Any, context: Any) -> worker_service_pb2.ShutdownResponse:
        self.ended.set()
        return worker_service_pb2.ShutdownResponse(incomplete=bool(self.left), left=self.left)

    async def run(self, code: bytes, context: Any) -> bytes:
        """Runs Python and answers what it left in `result`; with `# main thread` it may block the worker."""
        scope: dict[str, Any] = {"worker": self, "result": None, "ctypes": ctypes, "os": os}
        try:
            exec(code.decode(), scope)  # noqa: S102 - what this worker is for
        except BaseException:  # noqa: BLE001 - the answer says it
            return json.dumps({"error": traceback.format_exc()}).encode()
        return json.dumps({"result": scope["result"]}).encode()


async def main(address: str) -> None:
    if os.environ.get("HARNESS_DIE_WITH_PARENT") == "1":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    worker = Worker()
    server = grpc.aio.server()
    worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
    handler = grpc.unary_unary_rpc_method_handler(worker.run)
    service, method = RUN.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(address)
    await server.start()
    with os.fdopen(int(os.environ.pop("HARNESS_READY_FD")), "w") as ready:
        ready.write(json.dumps({"address": address}) + "\n")
    await worker.ended.wait()
    await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", action="store_true", required=True)
    parser.add_argument("--listen", required=True)
    asyncio.run(main(parser.parse_args().listen))
