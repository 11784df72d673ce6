"""What bindings leave behind after their cleanup: seen at the facades, in capacity, and in the target's process (R12.3)."""

import asyncio
import os
from typing import Any

import pytest

from conformance.cases import section_12
from conformance.cases.registry import CASES
from conformance.certification import Certifier, Options
from conformance.failure import TargetError
from conformance.plane.machine import SEES, connections_to
from harness.state.v1 import thread_state_service_pb2, thread_state_service_pb2_grpc
from tests.adapters.processes import AdapterProcess
from tests.conformance.conftest import folder
from tests.conformance.mutants.wire import Call, Mutation, Responses, Wire

__all__ = ["folder"]
pytestmark = pytest.mark.timeout(300)
CASES_OF_RULE = [case for case in CASES if case.rule.id == "R12.3"]
linux = pytest.mark.skipif(not SEES, reason="only on Linux can the kit look at a process")


async def looked_at(options: Options) -> dict[str, tuple[str, str]]:
    """Result and reason of the cases of the rule, by what they look at."""
    async with Certifier(options) as certifier:
        made = [await certifier.run(case) for case in CASES_OF_RULE]
    return {each.case.id.partition("/")[2]: (each.result, each.reason) for each in made}


class CallsAgain(Mutation):
    """At the cleanup of a binding it loads the head of the one that was cleaned up before."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, Any, Any]] = []
        self.gone: list[str] = []

    async def stream(self, call: Call) -> Responses:
        if call.method == "LoadHead":
            self.loads.append((call.request.fence.binding_id, call.request, call.metadata))
        async for response in call.proceed():
            yield response

    async def unary(self, call: Call) -> Any:
        if call.method == "WriteParts":
            first = call.request[0]
            load = thread_state_service_pb2.LoadHeadRequest(fence=first.fence)
            self.loads.append((first.fence.binding_id, load, call.metadata))
        if call.method == "Cleanup":
            stub: Any = thread_state_service_pb2_grpc.ThreadStateServiceStub(call.wire.facade("state"))
            for binding_id, request, metadata in self.loads:
                if binding_id in self.gone:
                    async for _ in stub.LoadHead(request, metadata=metadata):
                        pass
            self.gone.append(call.request.fence.binding_id)
        return await call.proceed()


async def test_a_facade_call_after_the_cleanup_is_found():
    async with Wire(CallsAgain()) as wire:
        result, reason = (await looked_at(Options(wire.address)))["facades"]
    assert (result, reason) == ("failed", "LoadHead was called for a binding after its cleanup.")


async def test_nothing_is_left_by_an_adapter_that_leaves_nothing():
    async with Wire(Mutation()) as wire:
        found = await looked_at(Options(wire.address))
    assert {what: result for what, (result, _) in found.items()} == {
        "capacity": "passed",
        "facades": "passed",
        "machine": "not_applicable",
    }
    assert "--pid" in found["machine"][1]


@linux
@pytest.mark.parametrize("leaves", ["processes", "descriptors", ""])
async def test_what_stays_in_the_targets_process_is_found(leaves, folder, monkeypatch):
    monkeypatch.setattr(section_12, "WAIT_SECONDS", 60 if not leaves else 1)
    target = AdapterProcess(folder, "tests.conformance.leaving", environment={"LEAVES": leaves})
    await target.start()
    try:
        result, reason = (await looked_at(Options(target.address, pid=target.pid)))["machine"]
    finally:
        await target.stop()
    assert result == ("failed" if leaves else "passed")
    assert leaves in reason


@linux
async def test_a_process_that_cannot_be_looked_at_is_said_at_once():
    async with Wire(Mutation()) as wire:
        with pytest.raises(TargetError, match="--pid: process 4194305 cannot be looked at"):
            async with Certifier(Options(wire.address, pid=4_194_305)):
                pass


@linux
@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_connections_are_counted_at_the_kits_own_address(kind, folder):
    async def serve(reader, writer):
        await reader.read()
        writer.close()

    path = os.path.join(folder, "s.sock")
    if kind == "unix":
        server, address = await asyncio.start_unix_server(serve, path), f"unix:{path}"
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert connections_to(address) == 0
    opened = [
        await (
            asyncio.open_unix_connection(path)
            if kind == "unix"
            else asyncio.open_connection("127.0.0.1", address.rpartition(":")[2])
        )
        for _ in range(2)
    ]
    assert connections_to(address) == 2
    for _, writer in opened:
        writer.close()
        await writer.wait_closed()
    server.close()
    await server.wait_closed()
