"""A toy mesh behind the gateway: the public services of catalog and runs, kept in memory, over one unix socket.

It is no mock: a real gRPC server with the mesh's own interceptor (service token, validation, error mapping) and the contracts' servicers. It keeps
what the gateway relies on: runs belong to a subject and are NOT_FOUND for others, sequences are 1..n, a terminal ends a log, a watch starts at any
cursor, the same client_request_id is the same run. What it leaves out is durability, executors and the validation of blueprints; the whole mesh is
tested in `tests/e2e`. A test drives it directly: `emit`, `finish`, `counts`, `stop`, `start`.

`python -m tests.gateway.toy_mesh SOCKET` serves it alone, for a look with the load client.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from pydantic import SecretStr

from harness.catalog.v1 import (
    agent_pb2,
    agent_service_pb2,
    agent_service_pb2_grpc,
    harness_pb2,
    harness_service_pb2,
    harness_service_pb2_grpc,
)
from harness.common.v1 import capability_pb2, error_pb2, placement_pb2
from harness.common.v1 import health_pb2 as harness_health_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_pb2, run_service_pb2, run_service_pb2_grpc
from services.common.caller import caller
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request, not_found
from services.common.ids import new_run_id
from services.common.interceptors import ServiceAuthenticator, ServiceInterceptor
from services.common.server import server_options

TOKEN = "toy-mesh-service-token"
CANARY = "canary-5e1f0b"
BATCH = 64
_STATUS = {
    "run_completed": run_pb2.RUN_STATUS_COMPLETED,
    "run_interrupted": run_pb2.RUN_STATUS_INTERRUPTED,
    "run_cancelled": run_pb2.RUN_STATUS_CANCELLED,
    "run_failed": run_pb2.RUN_STATUS_FAILED,
}


@dataclass
class ToyRun:
    owner: str
    record: run_pb2.Run
    request: bytes
    events: list[event_pb2.Event] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    first_kept: int = 1
    pending: run_service_pb2.InterruptState | None = None
    """What it waits for a person with."""
    watch_limit: int = 0
    """Batches after which a watch ends without a terminal; zero: none."""
    watch_fault: str = ""
    """Once, in the next watch: `repeat` or `skip` an event. `silent`: no watch brings anything after the run's first event."""

    @property
    def ended(self) -> bool:
        return self.record.status in _STATUS.values()

    async def beyond(self, cursor: int) -> None:
        """Until there is an event after the cursor, or never will be."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.events) > cursor or self.ended)


def delta(text: str, message_id: str = "m1") -> payload_pb2.EventPayload:
    return payload_pb2.EventPayload(content_delta=payload_pb2.ContentDelta(message_id=message_id, text=text))


def completed() -> payload_pb2.EventPayload:
    return payload_pb2.EventPayload(run_completed=payload_pb2.RunCompleted(stop_reason="end_turn"))


class ToyMesh:
    """The state, and the server in front of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.runs: dict[str, ToyRun] = {}
        self.agents: dict[str, list[agent_pb2.AgentVersion]] = {}
        self.records: dict[str, agent_pb2.AgentRecord] = {}
        self.counts: Counter[str] = Counter()
        self.watching: Counter[str] = Counter()
        self.watch_changed = asyncio.Condition()
        self.traceparents: list[str] = []
        self.fail_next: HarnessError | Exception | None = None
        self.fail_reads: list[HarnessError] = []
        """What the next reads of a log answer instead."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        interceptor = ServiceInterceptor(ServiceAuthenticator([SecretStr(TOKEN)]), default_deadline_seconds=30)
        server = grpc.aio.server(interceptors=[interceptor], options=server_options())
        run_service_pb2_grpc.add_RunServiceServicer_to_server(_Runs(self), server)
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(_Agents(self), server)
        harness_service_pb2_grpc.add_HarnessServiceServicer_to_server(_Harnesses(self), server)
        servicer: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - set at run time
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        server.add_insecure_port(self.address)
        await server.start()
        self._server = server

    def forget(self) -> None:
        """Empties the state, for the next test of a module that shares the mesh."""
        for kept in (self.runs, self.agents, self.records, self.counts, self.watching, self.traceparents):
            kept.clear()
        self.fail_next = None
        self.fail_reads.clear()

    async def stop(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    async def make_run(self, owner: str = "alice", run_id: str | None = None, **facts: Any) -> ToyRun:
        """A run that is going on, with its first event."""
        run_id = run_id or new_run_id()
        record = run_pb2.Run(run_id=run_id, agent_id="agent", status=run_pb2.RUN_STATUS_RUNNING, **facts)
        record.created_at.FromSeconds(1_900_000_000)
        run = self.runs[run_id] = ToyRun(owner, record, b"")
        started = payload_pb2.RunStarted(harness_id="toy", agent_version=1, binding_id="bnd_1")
        await self.emit(run, payload_pb2.EventPayload(run_started=started))
        return run

    async def emit(self, run: ToyRun, *payloads: payload_pb2.EventPayload, namespace: Iterable[str] = ()) -> None:
        """Puts events into the log and wakes whoever watches."""
        async with run.changed:
            for payload in payloads:
                event = event_pb2.Event(
                    version=1,
                    run_id=run.record.run_id,
                    sequence=len(run.events) + 1,
                    namespace=namespace,
                    payload=payload,
                )
                event.time.FromNanoseconds(1_900_000_000_000_000_000 + len(run.events) * 1_000_000)
                run.events.append(event)
                run.record.last_sequence = event.sequence
                run.record.status = _STATUS.get(payload.WhichOneof("kind") or "", run.record.status)
            run.changed.notify_all()

    async def finish(self, run: ToyRun, payload: payload_pb2.EventPayload | None = None) -> None:
        await self.emit(run, payload or completed())

    def owned(self, run_id: str) -> ToyRun:
        run = self.runs.get(run_id)
        if run is None or run.owner != caller().require_subject():
            raise not_found("run")
        return run

    def called(self, name: str, context: Any) -> None:
        self.counts[name] += 1
        self.traceparents += [value for key, value in context.invocation_metadata() or () if key == "traceparent"]
        failure, self.fail_next = self.fail_next, None
        if failure is not None:
            raise failure

    async def wait_watching(self, run_id: str, count: int) -> None:
        """Until exactly so many watches of the run are open."""
        async with self.watch_changed:
            await self.watch_changed.wait_for(lambda: self.watching[run_id] == count)

    async def script(self, run: ToyRun, spec: dict[str, Any]) -> None:
        """Plays the load client's message: `n` events at `rate` after `delay`."""
        await asyncio.sleep(spec.get("delay", 0))
        text = "x" * spec.get("size", 20)
        count, rate = spec.get("n", 3), spec.get("rate", 0)
        started = time.time()
        done = 0
        while done < count:
            now = min(count, int((time.time() - started) * rate) + 1) if rate else min(count, done + BATCH)
            if now > done:
                await self.emit(run, *(delta(f"ts={time.time():.6f} {text}") for _ in range(now - done)))
                done = now
            await asyncio.sleep(1 / rate if rate else 0)
        await self.finish(run)


class _Runs(run_service_pb2_grpc.RunServiceServicer):
    def __init__(self, mesh: ToyMesh) -> None:
        self._mesh = mesh

    async def StartRun(self, request: Any, context: Any) -> Any:
        mesh = self._mesh
        mesh.called("StartRun", context)
        owner = caller().require_subject()
        body = request.SerializeToString(deterministic=True)
        for run in mesh.runs.values():
            if run.owner != owner:
                continue
            if request.client_request_id and run.record.client_request_id == request.client_request_id:
                if run.request != body:
                    raise HarnessError(Reason.IDEMPOTENCY_MISMATCH, "The id was used for another request.")
                return run_service_pb2.StartRunResponse(run=run.record)
            if run.record.conversation_id == request.conversation_id and not run.ended:
                facts = {"run_id": run.record.run_id}
                raise HarnessError(Reason.HARNESS_SESSION_CONFLICT, "The conversation is busy.", metadata=facts)
        run = await mesh.make_run(
            owner, conversation_id=request.conversation_id, client_request_id=request.client_request_id
        )
        run.request = body
        run.record.agent_id = request.agent_id
        if request.message.startswith("{"):
            task = asyncio.create_task(mesh.script(run, json.loads(request.message)))
            mesh.tasks.add(task)
            task.add_done_callback(mesh.tasks.discard)
        return run_service_pb2.StartRunResponse(run=run.record)

    async def ResumeRun(self, request: Any, context: Any) -> Any:
        self._mesh.called("ResumeRun", context)
        asked = self._mesh.owned(request.run_id)
        pending, asked.pending = asked.pending, None
        if pending is None or (pending.interrupt_id, pending.revision) != (request.interrupt_id, request.revision):
            raise not_found("interrupt")
        run = await self._mesh.make_run(asked.owner, conversation_id=asked.record.conversation_id)
        return run_service_pb2.ResumeRunResponse(run=run.record)

    async def GetInterruptState(self, request: Any, context: Any) -> Any:
        self._mesh.called("GetInterruptState", context)
        owner = caller().require_subject()
        of_talk = [run for run in self._mesh.runs.values() if run.record.conversation_id == request.conversation_id]
        pending = next((run.pending for run in of_talk if run.owner == owner and run.pending is not None), None)
        return run_service_pb2.GetInterruptStateResponse(interrupt=pending)

    async def GetRun(self, request: Any, context: Any) -> Any:
        self._mesh.called("GetRun", context)
        return run_service_pb2.GetRunResponse(run=self._mesh.owned(request.run_id).record)

    async def ListRuns(self, request: Any, context: Any) -> Any:
        self._mesh.called("ListRuns", context)
        owner = caller().require_subject()
        own = [run.record for run in self._mesh.runs.values() if run.owner == owner]
        size = request.page_size or 50
        start = int(request.page_token or 0)
        page = list(reversed(own))[start : start + size]
        more = str(start + size) if start + size < len(own) else ""
        return run_service_pb2.ListRunsResponse(runs=page, next_page_token=more)

    async def ListEvents(self, request: Any, context: Any) -> Any:
        self._mesh.called("ListEvents", context)
        if self._mesh.fail_reads:
            raise self._mesh.fail_reads.pop()
        run = self._mesh.owned(request.run_id)
        _check_cursor(run, request.after)
        if request.wait:
            try:
                async with asyncio.timeout(request.wait):
                    await run.beyond(request.after)
            except TimeoutError:
                self._mesh.counts["long poll ended"] += 1
        events = _page(run.events[request.after : request.after + (request.limit or 500)])
        cursor = events[-1].sequence if events else request.after
        return run_service_pb2.ListEventsResponse(run=run.record, events=events, next_cursor=cursor)

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        mesh = self._mesh
        mesh.called("WatchRun", context)
        run = mesh.owned(request.run_id)
        _check_cursor(run, request.after)
        run_id, cursor = request.run_id, request.after
        await self._count(run_id, 1)
        sent = 0
        try:
            while True:
                if cursor and run.watch_fault == "silent":
                    await asyncio.Event().wait()  # as a process that is stopped
                events = run.events[cursor : cursor + BATCH]
                if events:
                    yield run_service_pb2.WatchRunResponse(events=_with_fault(run, events))
                    cursor = events[-1].sequence
                    sent += 1
                    if sent == run.watch_limit and not run.ended:
                        return
                elif run.ended:
                    return
                else:
                    await run.beyond(cursor)
        finally:
            await self._count(run_id, -1)

    async def _count(self, run_id: str, change: int) -> None:
        async with self._mesh.watch_changed:
            self._mesh.watching[run_id] += change
            self._mesh.watch_changed.notify_all()

    async def CancelRun(self, request: Any, context: Any) -> Any:
        self._mesh.called("CancelRun", context)
        run = self._mesh.owned(request.run_id)
        if not run.ended:
            cancelled = payload_pb2.RunCancelled(
                reason=payload_pb2.CANCEL_REASON_CLIENT_REQUEST, side_effect_status=error_pb2.SIDE_EFFECT_STATUS_NONE
            )
            await self._mesh.finish(run, payload_pb2.EventPayload(run_cancelled=cancelled))
        return run_service_pb2.CancelRunResponse(run=run.record)

    async def CancelActiveRun(self, request: Any, context: Any) -> Any:
        self._mesh.called("CancelActiveRun", context)
        return run_service_pb2.CancelActiveRunResponse(cancelled=False)

    async def ClearSession(self, request: Any, context: Any) -> Any:
        self._mesh.called("ClearSession", context)
        return run_service_pb2.ClearSessionResponse(cleared=True, closed_binding_id="bnd_1", next_epoch=2)

    async def Invoke(self, request: Any, context: Any) -> Any:
        self._mesh.called("Invoke", context)
        if request.message == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                async with self._mesh.watch_changed:
                    self._mesh.watching["invoke cancelled"] += 1
                    self._mesh.watch_changed.notify_all()
        return run_service_pb2.InvokeResponse(content=f"echo {request.message}", run_id="run_1")


def _page(events: list[event_pb2.Event]) -> list[event_pb2.Event]:
    """As much of it as makes about 1 MiB."""
    sizes = itertools.accumulate(event.ByteSize() for event in events)
    return [event for event, size in zip(events, sizes, strict=True) if size <= 1_048_576] or events[:1]


def _with_fault(run: ToyRun, events: list[event_pb2.Event]) -> list[event_pb2.Event]:
    if not run.watch_fault or events[0].sequence == 1:
        return events
    fault, run.watch_fault = run.watch_fault, ""
    return events[1:] if fault == "skip" else [run.events[events[0].sequence - 2], *events]


def _check_cursor(run: ToyRun, after: int) -> None:
    if after + 1 < run.first_kept:
        raise HarnessError(Reason.CURSOR_EXPIRED, f"Events up to {run.first_kept - 1} are no longer kept.")


class _Agents(agent_service_pb2_grpc.AgentServiceServicer):
    def __init__(self, mesh: ToyMesh) -> None:
        self._mesh = mesh

    def _known(self, agent_id: str) -> list[agent_pb2.AgentVersion]:
        if agent_id not in self._mesh.agents:
            raise not_found("agent")
        return self._mesh.agents[agent_id]

    async def ValidateAgentDraft(self, request: Any, context: Any) -> Any:
        self._mesh.called("ValidateAgentDraft", context)
        report = agent_pb2.ValidationReport(valid=request.blueprint.harness.id == "toy", catalog_revision="cat_1")
        report.normalized_blueprint.CopyFrom(request.blueprint)
        report.capabilities["stream.text"].level = capability_pb2.CAPABILITY_LEVEL_NATIVE
        return agent_service_pb2.ValidateAgentDraftResponse(report=report)

    async def SaveAgent(self, request: Any, context: Any) -> Any:
        mesh = self._mesh
        mesh.called("SaveAgent", context)
        record = mesh.records.get(request.agent_id)
        if request.HasField("expected_revision") and request.expected_revision != (record.revision if record else 0):
            raise HarnessError(Reason.REVISION_CONFLICT, "The agent was changed meanwhile: load it again.")
        if request.blueprint.harness.id not in ("toy", "reference"):
            raise invalid_request([FieldIssue("blueprint.harness.id", "harness_unknown", "There is no such harness.")])
        versions = mesh.agents.setdefault(request.agent_id, [])
        version = agent_pb2.AgentVersion(
            agent_id=request.agent_id, version=len(versions) + 1, blueprint=request.blueprint
        )
        versions.append(version)
        record = agent_pb2.AgentRecord(
            agent_id=request.agent_id, current_version=version.version, revision=version.version, enabled=True
        )
        mesh.records[request.agent_id] = record
        return agent_service_pb2.SaveAgentResponse(record=record, version=version)

    async def ListAgents(self, request: Any, context: Any) -> Any:
        self._mesh.called("ListAgents", context)
        return agent_service_pb2.ListAgentsResponse(
            agents=[self._mesh.records[key] for key in sorted(self._mesh.records)]
        )

    async def GetAgent(self, request: Any, context: Any) -> Any:
        self._mesh.called("GetAgent", context)
        versions = self._known(request.agent_id)
        return agent_service_pb2.GetAgentResponse(record=self._mesh.records[request.agent_id], version=versions[-1])

    async def ListAgentVersions(self, request: Any, context: Any) -> Any:
        self._mesh.called("ListAgentVersions", context)
        versions = self._known(request.agent_id)
        record = self._mesh.records[request.agent_id]
        return agent_service_pb2.ListAgentVersionsResponse(record=record, versions=list(reversed(versions)))

    async def GetAgentVersion(self, request: Any, context: Any) -> Any:
        self._mesh.called("GetAgentVersion", context)
        versions = self._known(request.agent_id)
        if request.version > len(versions):
            raise not_found("version")
        return agent_service_pb2.GetAgentVersionResponse(
            record=self._mesh.records[request.agent_id], version=versions[request.version - 1]
        )

    async def DisableAgent(self, request: Any, context: Any) -> Any:
        self._mesh.called("DisableAgent", context)
        self._known(request.agent_id)
        self._mesh.records[request.agent_id].enabled = False
        return agent_service_pb2.DisableAgentResponse(record=self._mesh.records[request.agent_id])


class _Harnesses(harness_service_pb2_grpc.HarnessServiceServicer):
    def __init__(self, mesh: ToyMesh) -> None:
        self._mesh = mesh

    async def ListHarnesses(self, request: Any, context: Any) -> Any:
        self._mesh.called("ListHarnesses", context)
        toy = harness_pb2.Harness(
            harness_id="toy",
            placements=[placement_pb2.PLACEMENT_SANDBOX_POD],
            availability=harness_pb2.AVAILABILITY_AVAILABLE,
        )
        toy.options_schema.update({"type": "object", "maxProperties": 3})
        away = harness_pb2.Harness(harness_id="away", availability=harness_pb2.AVAILABILITY_UNAVAILABLE)
        return harness_service_pb2.ListHarnessesResponse(
            contract_version=1, catalog_revision="cat_1", harnesses=[away, toy]
        )

    async def GetHarnessHealth(self, request: Any, context: Any) -> Any:
        self._mesh.called("GetHarnessHealth", context)
        if request.harness_id != "toy":
            raise not_found("harness")
        report = harness_health_pb2.HealthReport(status=harness_health_pb2.HEALTH_STATUS_HEALTHY)
        report.checks.add(name="provider", status=harness_health_pb2.HEALTH_STATUS_HEALTHY)
        health_answer = harness_service_pb2.HarnessHealth(
            harness_id="toy", availability=harness_pb2.AVAILABILITY_AVAILABLE, report=report
        )
        return harness_service_pb2.GetHarnessHealthResponse(health=health_answer)


async def _main(address: str) -> None:
    mesh = ToyMesh(address)
    await mesh.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(f"unix:{sys.argv[1]}"))
