"""A small real mesh: sessions, catalog, the reference adapter and runs as processes, and clients of runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from pydantic import SecretStr

from harness.catalog.v1 import agent_service_pb2, agent_service_pb2_grpc
from harness.common.v1 import blueprint_pb2, fence_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_pb2, run_service_pb2, run_service_pb2_grpc
from harness.session.v1 import binding_pb2, session_service_pb2, session_service_pb2_grpc
from harness.state.v1 import thread_state_service_pb2, thread_state_service_pb2_grpc
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner, generate_private_key
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason

TOKEN = "service-token-of-the-tests"
PATIENCE = 30.0
"""Of one call. Some tests have meshes that help themselves only later than that."""
LONG = 90.0
"""Of what takes several calls, or as long as a run."""
KILL, TERMINATE = signal.SIGKILL, signal.SIGTERM


def _profile(profile_id: str, **more: Any) -> dict[str, Any]:
    return {"id": profile_id, "placement": "provider_managed", **more}


@dataclass
class Part:
    """One process of the mesh, started and ended by its pid."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    _ready: int = -1

    def start(self) -> None:
        """Returns once the process says that it serves."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start the process; pair with `wait_ready`."""
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                env=self.environment | {"HARNESS_READY_FD": str(writing)},
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        self._ready = reading

    def wait_ready(self) -> None:
        """Returns once the process says that it serves."""
        with os.fdopen(self._ready) as pipe:
            line = pipe.readline()
        assert line, f"{self.name} did not start:\n{self.log.read_text()}"
        json.loads(line)

    @property
    def lives(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def end(self, number: int = TERMINATE) -> int:
        """Ends the process if it still runs; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def restart(self, number: int = KILL) -> None:
        """Another incarnation at the same place."""
        self.end(number)
        self.start()


@dataclass
class Mesh:
    """The processes, in the order in which they start."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="hm-")))
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the runs service on top of those of the tests."""

    def __post_init__(self) -> None:
        key = generate_private_key()
        self._private, self._public = key, CapabilitySigner(key).public_key_pem
        self._write_operator_file()
        self.sessions = self._part(
            "sessions",
            ["-m", "services.sessions"],
            {
                "HARNESS_FACADE_LISTEN": self.address("facade"),
                "HARNESS_CAPABILITY_VERIFY_KEYS": self._public,
            },
        )
        self.reference = self._part(
            "reference", ["-m", "adapters.reference", "--listen", self.address("reference")], {}, is_service=False
        )
        self.catalog = self._part(
            "catalog",
            ["-m", "services.catalog"],
            {
                "HARNESS_CONFIG_FILE": str(self.folder / "harness.yaml"),
                "HARNESS_ADAPTER_POLL_SECONDS": "0.2",
            },
        )
        self.runs = self.runs_part("runs")

    def runs_part(self, name: str, **settings: Any) -> Part:
        """A replica of the runs service; all share one store."""
        environment = {
            "HARNESS_STORE_URL": f"sqlite://{self.folder}/runs.sqlite3",
            "HARNESS_CATALOG_ADDRESS": self.address("catalog"),
            "HARNESS_SESSIONS_ADDRESS": self.address("sessions"),
            "HARNESS_STATE_FACADE_ADDRESS": self.address("facade"),
            "HARNESS_TOOL_FACADE_LISTEN": self.address(f"{name}-tools"),
            "HARNESS_CAPABILITY_SIGNING_KEY": self._private,
            "HARNESS_LEASE_TTL_SECONDS": "2",
            "HARNESS_SWEEP_INTERVAL_SECONDS": "0.2",
            "HARNESS_REATTACH_SECONDS": "2",
        }
        return self._part(name, ["-m", "services.runs"], {**environment, **self.settings, **settings})

    def service_part(self, name: str, environment: dict[str, Any]) -> Part:
        """Another service of the mesh; whoever asks for it starts and ends it."""
        return self._part(name, ["-m", f"services.{name}"], environment)

    def capability(self, fence: fence_pb2.Fence, audience: str = "state", tools: tuple[str, ...] = ()) -> str:
        """The token for a facade that the run of the fence got; `tools` are marks of those it opens."""
        capability = Capability(
            audience=audience,
            binding_id=fence.binding_id,
            epoch=fence.epoch,
            runtime_generation=fence.runtime_generation,
            run_id=fence.run_id,
            tool_ids=tools,
        )
        return CapabilitySigner(self._private).sign(capability, deadline_at=time.time() + 600)

    def address(self, name: str) -> str:
        """Where a part listens."""
        return f"unix:{self.folder}/{name}.sock"

    def start(self) -> Mesh:
        """Start everything; what was started is ended when something does not come up."""
        try:
            # The catalog looks at the adapter when it starts; what does not wait for each other starts together.
            for together in ((self.sessions, self.reference), (self.catalog, self.runs)):
                for part in together:
                    part.begin()
                for part in together:
                    part.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def heal(self) -> None:
        """Start again what a test has ended."""
        for part in (self.sessions, self.reference, self.catalog, self.runs):
            if not part.lives:
                part.start()

    def close(self) -> None:
        """End every process, and leave no file behind."""
        for part in (self.runs, self.catalog, self.reference, self.sessions):
            if part.process is not None:
                part.end(KILL)
        shutil.rmtree(self.folder)

    def _part(self, name: str, command: list[str], environment: dict[str, Any], *, is_service: bool = True) -> Part:
        keep = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "HOME") if key in os.environ}
        common = {"HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        if is_service:
            common |= {
                "HARNESS_LISTEN": self.address(name),
                "HARNESS_DATA_DIR": str(self.folder / name),
                "HARNESS_SERVICE_TOKENS": TOKEN,
                "HARNESS_IDENTITY_KEY": "identity-key-of-the-tests",
            }
        return Part(name, command, keep | common | environment, self.folder / f"{name}.log")

    def _write_operator_file(self) -> None:
        reference = {
            "harness_id": "reference",
            "address": self.address("reference"),
            "profiles": [
                _profile("default"),
                _profile("faults", settings={"allow_faults": True}),
                _profile("brief", limits={"max_run_seconds": 1}),
                _profile("single", settings={"allow_faults": True}, limits={"max_concurrent_runs": 1}),
            ],
        }
        tools = [{"id": tool_id, "provider": "builtin"} for tool_id in ("clock", "calculator")]
        (self.folder / "harness.yaml").write_text(
            yaml.safe_dump({"version": 1, "adapters": [reference], "tools": tools})
        )


class Client:
    """One subject's calls to one replica of runs, and of the services beside it."""

    def __init__(self, mesh: Mesh, subject: str | None = None, replica: str = "runs") -> None:
        self.mesh = mesh
        self.subject = subject or f"subject-{uuid.uuid4().hex}"
        token = SecretStr(TOKEN)
        self._runs = connect(mesh.address(replica), token)
        self._catalog = connect(mesh.address("catalog"), token)
        self._sessions = connect(mesh.address("sessions"), token)
        self._facade = connect(mesh.address("facade"), None)
        self._state = thread_state_service_pb2_grpc.ThreadStateServiceStub(self._facade.channel)
        self.runs = run_service_pb2_grpc.RunServiceStub(self._runs.channel)
        self._agents = agent_service_pb2_grpc.AgentServiceStub(self._catalog.channel)
        self._bindings = session_service_pb2_grpc.SessionServiceStub(self._sessions.channel)

    @property
    def peers(self) -> tuple[Peer, ...]:
        return self._runs, self._catalog, self._sessions, self._facade

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()

    async def agent(self, profile: str = "faults", **blueprint: Any) -> str:
        """A new agent of the reference harness; its id."""
        agent_id = f"agent-{uuid.uuid4().hex[:12]}"
        await self.save(agent_id, profile, **blueprint)
        return agent_id

    async def save(self, agent_id: str, profile: str = "faults", **blueprint: Any) -> int:
        """The agent's next version."""
        document = {
            "id": agent_id,
            "name": "Tests",
            "harness": {"id": "reference", "profile_id": profile},
            **blueprint,
        }
        request = agent_service_pb2.SaveAgentRequest(
            agent_id=agent_id, blueprint=json_format.ParseDict(document, blueprint_pb2.AgentBlueprint())
        )
        # The catalog may not have found the adapter yet; nothing signals that, so this asks again, bounded.
        async with asyncio.timeout(LONG):
            while True:
                try:
                    response = await self._catalog.call(
                        self._agents.SaveAgent, request, subject=self.subject, wait_for_ready=True
                    )
                except HarnessError as error:
                    if not error.retryable and not _is_unknown_yet(error):
                        raise
                    await asyncio.sleep(0.05)
                else:
                    return response.version.version

    async def disable(self, agent_id: str) -> None:
        request = agent_service_pb2.DisableAgentRequest(agent_id=agent_id)
        await self._catalog.call(self._agents.DisableAgent, request, subject=self.subject)

    async def start(
        self, agent_id: str, message: str | dict[str, Any] = "hello", conversation: str | None = None, **more: Any
    ) -> run_pb2.Run:
        """Start a run; a dict is a burst or a script of the reference harness."""
        request = run_service_pb2.StartRunRequest(
            agent_id=agent_id,
            conversation_id=conversation or f"c-{uuid.uuid4().hex}",
            message=message if isinstance(message, str) else json.dumps(message),
            **more,
        )
        response = await self._runs.call(self.runs.StartRun, request, subject=self.subject, timeout=PATIENCE)
        return response.run

    async def invoke(self, agent_id: str, message: str | dict[str, Any], **more: Any) -> run_service_pb2.InvokeResponse:
        request = run_service_pb2.InvokeRequest(
            agent_id=agent_id,
            conversation_id=f"c-{uuid.uuid4().hex}",
            message=message if isinstance(message, str) else json.dumps(message),
            **more,
        )
        return await self._runs.call(self.runs.Invoke, request, subject=self.subject, timeout=PATIENCE)

    async def resume(self, run_id: str, interrupt_id: str, revision: int = 1, **answer: Any) -> run_pb2.Run:
        """Answer an interrupt; `form` is a dict of values, `calls` one of decisions by call, else it is dismissed."""
        request = run_service_pb2.ResumeRunRequest(
            run_id=run_id,
            interrupt_id=interrupt_id,
            revision=revision,
            client_request_id=answer.pop("client_request_id", ""),
        )
        if "form" in answer:
            json_format.ParseDict(answer["form"], request.form_values)
        elif "calls" in answer:
            for call_id, decision in answer["calls"].items():
                json_format.ParseDict({"tool_call_id": call_id, **decision}, request.tool_decisions.decisions.add())
        else:
            request.dismiss = True
        response = await self._runs.call(self.runs.ResumeRun, request, subject=self.subject, timeout=PATIENCE)
        return response.run

    async def interrupt_state(self, agent_id: str, conversation: str) -> run_service_pb2.InterruptState | None:
        """What the conversation waits for."""
        request = run_service_pb2.GetInterruptStateRequest(agent_id=agent_id, conversation_id=conversation)
        response = await self._runs.call(self.runs.GetInterruptState, request, subject=self.subject)
        return response.interrupt if response.HasField("interrupt") else None

    async def get(self, run_id: str) -> run_pb2.Run:
        request = run_service_pb2.GetRunRequest(run_id=run_id)
        response = await self._runs.call(self.runs.GetRun, request, subject=self.subject, wait_for_ready=True)
        return response.run

    async def list(self, **fields: Any) -> run_service_pb2.ListRunsResponse:
        return await self._runs.call(
            self.runs.ListRuns, run_service_pb2.ListRunsRequest(**fields), subject=self.subject
        )

    async def cancel(self, run_id: str) -> run_pb2.Run:
        request = run_service_pb2.CancelRunRequest(run_id=run_id)
        response = await self._runs.call(
            self.runs.CancelRun, request, subject=self.subject, timeout=PATIENCE, wait_for_ready=True
        )
        return response.run

    async def cancel_active(self, agent_id: str, conversation: str) -> run_service_pb2.CancelActiveRunResponse:
        request = run_service_pb2.CancelActiveRunRequest(agent_id=agent_id, conversation_id=conversation)
        return await self._runs.call(self.runs.CancelActiveRun, request, subject=self.subject, timeout=PATIENCE)

    async def clear(self, agent_id: str, conversation: str) -> run_service_pb2.ClearSessionResponse:
        request = run_service_pb2.ClearSessionRequest(agent_id=agent_id, conversation_id=conversation)
        return await self._runs.call(self.runs.ClearSession, request, subject=self.subject, timeout=PATIENCE)

    async def watch(self, run_id: str, after: int = 0) -> AsyncGenerator[event_pb2.Event]:
        """The run's events, until its end."""
        request = run_service_pb2.WatchRunRequest(run_id=run_id, after=after)
        stream = self._runs.stream(self.runs.WatchRun, request, subject=self.subject, timeout=LONG, wait_for_ready=True)
        async with aclosing(stream) as responses:
            async for response in responses:
                for event in response.events:
                    yield event

    async def events(self, run_id: str, after: int = 0) -> list[event_pb2.Event]:
        """All events to the run's end, which must be dense from the cursor on (I7)."""
        found = [event async for event in self.watch(run_id, after)]
        assert [event.sequence for event in found] == list(range(after + 1, after + len(found) + 1))
        return found

    async def kinds(self, run_id: str) -> list[str]:
        """The kinds of all events to the run's end."""
        return [kind(event) for event in await self.events(run_id)]

    async def page(self, run_id: str, **fields: Any) -> run_service_pb2.ListEventsResponse:
        request = run_service_pb2.ListEventsRequest(run_id=run_id, **fields)
        return await self._runs.call(self.runs.ListEvents, request, subject=self.subject, timeout=PATIENCE)

    async def seen(self, run_id: str, wanted: str) -> event_pb2.Event:
        """The first event of a kind, as soon as it is there."""
        async with aclosing(self.watch(run_id)) as events:
            async for event in events:
                if kind(event) == wanted:
                    return event
        raise AssertionError(f"{run_id} ended without {wanted}")

    async def ended(self, run_id: str) -> run_pb2.Run:
        """The run once its terminal is in the log."""
        await self.events(run_id)
        return await self.get(run_id)

    async def binding(self, agent_id: str, conversation: str) -> binding_pb2.Binding:
        request = session_service_pb2.FindBindingRequest(agent_id=agent_id, conversation_id=conversation)
        response = await self._sessions.call(self._bindings.FindBinding, request, subject=self.subject)
        return response.binding

    async def settled(self, agent_id: str, conversation: str) -> binding_pb2.Binding:
        """The binding once nobody holds its slot."""
        async with asyncio.timeout(LONG):
            # Nothing signals a release: a bounded poll.
            while (found := await self.binding(agent_id, conversation)).HasField("active"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found

    async def write_part(self, fence: fence_pb2.Fence) -> str:
        """Write a part of the run's state, as its runtime would."""
        request = thread_state_service_pb2.WritePartsRequest(
            fence=fence, codec="reference.v1", idempotency_key=uuid.uuid4().hex, chunk=b"state"
        )
        response = await self._facade.call(self._state.WriteParts, [request], credential=self.mesh.capability(fence))
        return response.part_ref

    async def mark_uncertain(self, fence: fence_pb2.Fence) -> None:
        """Say that nobody knows whether the run's state was kept, as its runtime would."""
        request = thread_state_service_pb2.MarkUncertainRequest(fence=fence)
        await self._facade.call(self._state.MarkUncertain, request, credential=self.mesh.capability(fence))

    async def commit_head(self, fence: fence_pb2.Fence, interrupt: binding_pb2.Interrupt | None = None) -> int:
        """Commit a head for the run, as its executor would, with what it asks if it ends so."""
        request = session_service_pb2.CommitHeadRequest(
            fence=fence, outcome=payload_pb2.RunCompleted(stop_reason="end_turn"), interrupt=interrupt
        )
        response = await self._sessions.call(self._bindings.CommitHead, request)
        return response.revision

    async def reserve_turn(
        self, request: session_service_pb2.ReserveTurnRequest
    ) -> session_service_pb2.ReserveTurnResponse:
        """Reserve the slot as any starter would, and store nothing."""
        return await self._sessions.call(self._bindings.ReserveTurn, request, subject=self.subject)

    async def begin_clear(self, agent_id: str, conversation: str) -> None:
        """Begin a clear and do no more, as a clear that dies half-way."""
        request = session_service_pb2.BeginClearRequest(agent_id=agent_id, conversation_id=conversation)
        response = await self._sessions.call(self._bindings.BeginClear, request, subject=self.subject)
        assert response.closing

    async def reserve(
        self,
        agent_id: str,
        conversation: str,
        run_id: str,
        key: str,
        policy: binding_pb2.ConflictPolicy.ValueType = binding_pb2.CONFLICT_POLICY_REJECT,
        outcome: session_service_pb2.ReserveOutcome.ValueType = session_service_pb2.RESERVE_OUTCOME_GRANTED,
    ) -> binding_pb2.Binding:
        """Reserve the slot, or a place before it, and store nothing, as a start that dies half-way."""
        request = session_service_pb2.ReserveTurnRequest(
            agent_id=agent_id,
            conversation_id=conversation,
            run_id=run_id,
            request_key=key,
            pin=binding_pb2.AgentPin(agent_version=1, harness_id="reference", profile_id="faults"),
            on_conflict=policy,
        )
        response = await self._sessions.call(self._bindings.ReserveTurn, request, subject=self.subject)
        assert response.outcome == outcome
        return response.binding


def _is_unknown_yet(error: HarnessError) -> bool:
    """Whether a blueprint was found not valid only because the catalog has not seen its adapter yet."""
    return any(issue.code in (Reason.HARNESS_UNKNOWN, Reason.HARNESS_UNAVAILABLE) for issue in error.details)


def kind(event: event_pb2.Event) -> str:
    """The kind of an event's payload."""
    return event.payload.WhichOneof("kind") or ""


def text(events: list[event_pb2.Event]) -> str:
    """The joined content."""
    return "".join(event.payload.content_delta.text for event in events)


def fence_of(binding: binding_pb2.Binding) -> fence_pb2.Fence:
    """The fence of the run that holds the slot."""
    return fence_pb2.Fence(
        protocol_version=1,
        binding_id=binding.binding_id,
        epoch=binding.epoch,
        runtime_generation=binding.runtime_generation,
        turn=binding.turn,
        run_id=binding.active.run_id,
        run_generation=binding.active.run_generation,
    )
