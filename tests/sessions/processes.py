"""Real sessions processes over real sockets and one real SQLite file, and clients of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import SecretStr

from harness.common.v1 import fence_pb2, runtime_ref_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.session.v1 import binding_pb2
from harness.session.v1 import session_service_pb2 as session
from harness.session.v1 import session_service_pb2_grpc as session_grpc
from harness.state.v1 import thread_state_service_pb2 as state
from harness.state.v1 import thread_state_service_pb2_grpc as state_grpc
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner, generate_private_key
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason

TOKEN = "service-token-of-the-tests"
IDENTITY_KEY = "identity-key-of-the-tests"
SUBJECT = "subject-canary-5d1e@users"
AGENT = "writer"
SIGNER = CapabilitySigner(generate_private_key())

GRANTED = session.RESERVE_OUTCOME_GRANTED
WAITING = session.RESERVE_OUTCOME_WAITING
EXISTING = session.RESERVE_OUTCOME_EXISTING
OCCUPIED = session.RESERVE_OUTCOME_OCCUPIED
CLOSING = session.RESERVE_OUTCOME_CLOSING
REJECT = binding_pb2.CONFLICT_POLICY_REJECT
ENQUEUE = binding_pb2.CONFLICT_POLICY_ENQUEUE
INTERRUPT = binding_pb2.CONFLICT_POLICY_INTERRUPT


@dataclass
class Sessions:
    """One process of the service. Several may share `folder`, and so the store."""

    folder: Path
    name: str = "a"
    settings: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/{self.name}.sock"

    @property
    def facade(self) -> str:
        return f"unix:{self.folder}/{self.name}-facade.sock"

    @property
    def database(self) -> Path:
        return self.folder / "data" / "sessions.sqlite3"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def environment(self) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        return keep | {
            "HARNESS_LISTEN": self.address,
            "HARNESS_FACADE_LISTEN": self.facade,
            "HARNESS_DATA_DIR": str(self.folder / "data"),
            "HARNESS_SERVICE_TOKENS": TOKEN,
            "HARNESS_IDENTITY_KEY": IDENTITY_KEY,
            "HARNESS_CAPABILITY_VERIFY_KEYS": SIGNER.public_key_pem,
            "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
            **self.settings,
        }

    async def start(self) -> "Sessions":
        """Returns once the process says that it serves."""
        # Not in a thread: the process dies with the thread that made it.
        reading = self._spawn()
        return await asyncio.to_thread(self._wait_until_ready, reading)

    def start_and_wait(self) -> "Sessions":
        """`start` outside of an event loop."""
        return self._wait_until_ready(self._spawn())

    def _wait_until_ready(self, reading: int) -> "Sessions":
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, f"the service did not start:\n{self.log.read_text()}"
        assert json.loads(line)["address"] == self.address
        return self

    def _spawn(self) -> int:
        reading, writing = os.pipe()
        environment = self.environment() | {"HARNESS_READY_FD": str(writing)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.sessions"],
                env=environment,
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        return reading

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process if it still runs; its exit code."""
        return await asyncio.to_thread(self.stop_and_wait, number)

    def stop_and_wait(self, number: int = signal.SIGTERM) -> int:
        """`stop` outside of an event loop."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


class Client:
    """Calls one process as another service and as a runtime would. With an agent of its own it meets nobody else's conversations."""

    def __init__(self, sessions: Sessions, agent: str = AGENT) -> None:
        self.sessions = sessions
        self.agent = agent
        self.peer: Peer = connect(sessions.address, SecretStr(TOKEN))
        self.worker: Peer = connect(sessions.facade)
        self.stub: Any = session_grpc.SessionServiceStub(self.peer.channel)
        self.state: Any = state_grpc.ThreadStateServiceStub(self.worker.channel)

    async def close(self) -> None:
        await self.peer.close()
        await self.worker.close()

    async def call(self, method: str, request: Any, subject: str | None = None) -> Any:
        return await self.peer.call(getattr(self.stub, method), request, subject=subject, timeout=60)

    async def reserve(
        self,
        run_id: str,
        conversation: str = "c1",
        *,
        key: str | None = None,
        policy: Any = REJECT,
        subject: str = SUBJECT,
        version: int = 1,
        answers: session.InterruptAnswer | None = None,
        expected_revision: int | None = None,
    ) -> session.ReserveTurnResponse:
        request = session.ReserveTurnRequest(
            agent_id=self.agent,
            conversation_id=conversation,
            pin=binding_pb2.AgentPin(agent_version=version, harness_id="reference", profile_id="default"),
            run_id=run_id,
            request_key=key or f"key-{run_id}",
            on_conflict=policy,
            answers=answers,
            expected_revision=expected_revision,
        )
        return await self.call("ReserveTurn", request, subject)

    async def granted(self, run_id: str, conversation: str = "c1", **more: Any) -> binding_pb2.Binding:
        answer = await self.reserve(run_id, conversation, **more)
        assert answer.outcome == GRANTED
        assert answer.run_id == run_id
        return answer.binding

    async def release(
        self, binding_id: str, run_id: str, stored: bool = True, *, issued: bool = True, interrupted: bool = False
    ) -> session.ReleaseTurnResponse:
        request = session.ReleaseTurnRequest(
            binding_id=binding_id, run_id=run_id, stored=stored, issued=issued, interrupted=interrupted
        )
        return await self.call("ReleaseTurn", request)

    async def withdraw(self, binding_id: str, run_id: str) -> session.WithdrawTurnResponse:
        return await self.call("WithdrawTurn", session.WithdrawTurnRequest(binding_id=binding_id, run_id=run_id))

    async def claim(self, binding_id: str, run_id: str, run_generation: int) -> binding_pb2.Binding:
        request = session.ClaimTurnRequest(binding_id=binding_id, run_id=run_id, run_generation=run_generation)
        return (await self.call("ClaimTurn", request)).binding

    async def find(self, conversation: str = "c1", subject: str = SUBJECT) -> binding_pb2.Binding:
        request = session.FindBindingRequest(agent_id=self.agent, conversation_id=conversation)
        return (await self.call("FindBinding", request, subject)).binding

    async def get(self, binding_id: str) -> session.GetBindingResponse:
        return await self.call("GetBinding", session.GetBindingRequest(binding_id=binding_id))

    async def begin_clear(self, conversation: str = "c1", subject: str = SUBJECT) -> session.BeginClearResponse:
        request = session.BeginClearRequest(agent_id=self.agent, conversation_id=conversation)
        return await self.call("BeginClear", request, subject)

    async def finish_clear(self, binding_id: str) -> int:
        return (await self.call("FinishClear", session.FinishClearRequest(binding_id=binding_id))).next_epoch

    async def advance(self, fence: fence_pb2.Fence) -> binding_pb2.Binding:
        return (await self.call("AdvanceRuntime", session.AdvanceRuntimeRequest(fence=fence))).binding

    async def record_runtime(self, fence: fence_pb2.Fence, incarnation: str = "inc1") -> None:
        ref = runtime_ref_pb2.RuntimeRef(address="unix:/run/w.sock", incarnation=incarnation)
        await self.call("RecordRuntime", session.RecordRuntimeRequest(fence=fence, runtime_ref=ref))

    async def record_session(self, fence: fence_pb2.Fence, native: str = "native-1") -> int:
        request = session.RecordNativeSessionRequest(fence=fence, native_session_id=native)
        return (await self.call("RecordNativeSession", request)).session_revision

    async def commit(
        self,
        fence: fence_pb2.Fence,
        parts: list[str] | None = None,
        *,
        replace: bool = False,
        reason: str = "end_turn",
        incarnation: str = "",
        interrupt: binding_pb2.Interrupt | None = None,
    ) -> int:
        request = session.CommitHeadRequest(
            fence=fence, outcome=payload_pb2.RunCompleted(stop_reason=reason), interrupt=interrupt
        )
        if incarnation:
            request.runtime_ref.CopyFrom(
                runtime_ref_pb2.RuntimeRef(address="unix:/run/adapter", incarnation=incarnation)
            )
        if parts is not None:
            request.pending.CopyFrom(event_pb2.PendingHead(part_refs=parts, replace=replace))
        return (await self.call("CommitHead", request)).revision

    async def unsettled(self, before: float | None = None, **more: Any) -> session.ListUnsettledBindingsResponse:
        stamp = Timestamp()
        stamp.FromMilliseconds(int((time.time() + 60 if before is None else before) * 1000))
        return await self.call("ListUnsettledBindings", session.ListUnsettledBindingsRequest(before=stamp, **more))

    async def load(self, fence: fence_pb2.Fence, token: str | None = None) -> list[state.LoadHeadResponse]:
        stream = self.worker.stream(
            self.state.LoadHead,
            state.LoadHeadRequest(fence=fence),
            timeout=60,
            credential=token or token_of(fence),
        )
        return [message async for message in stream]

    async def write(
        self,
        fence: fence_pb2.Fence,
        key: str,
        content: bytes,
        *,
        codec: str = "reference.v1",
        token: str | None = None,
        chunk: int = 1 << 20,
    ) -> str:
        messages = [state.WritePartsRequest(fence=fence, codec=codec, idempotency_key=key, chunk=content[:chunk])]
        messages += [
            state.WritePartsRequest(chunk=content[start : start + chunk]) for start in range(chunk, len(content), chunk)
        ]
        answer = await self.worker.call(
            self.state.WriteParts, _stream(messages), timeout=60, credential=token or token_of(fence)
        )
        return answer.part_ref

    async def mark_uncertain(self, fence: fence_pb2.Fence, token: str | None = None) -> bool:
        answer = await self.worker.call(
            self.state.MarkUncertain,
            state.MarkUncertainRequest(fence=fence),
            timeout=60,
            credential=token or token_of(fence),
        )
        return answer.already_committed


async def _stream(messages: list[Any]):
    for message in messages:
        yield message


def fence_of(binding: binding_pb2.Binding, **changes: Any) -> fence_pb2.Fence:
    """The current fence of the run in the slot."""
    parts: dict[str, Any] = {
        "protocol_version": 1,
        "binding_id": binding.binding_id,
        "epoch": binding.epoch,
        "runtime_generation": binding.runtime_generation,
        "turn": binding.turn,
        "run_id": binding.active.run_id,
        "run_generation": binding.active.run_generation,
    }
    return fence_pb2.Fence(**(parts | changes))


def token_of(fence: fence_pb2.Fence, **changes: Any) -> str:
    """A token for exactly what the fence claims."""
    parts: dict[str, Any] = {
        "audience": "state",
        "binding_id": fence.binding_id,
        "epoch": fence.epoch,
        "runtime_generation": fence.runtime_generation,
        "run_id": fence.run_id,
    }
    return SIGNER.sign(Capability(**(parts | changes)), deadline_at=time.time() + 600)


async def refused(call: Any, reason: Reason = Reason.STALE_LEASE) -> HarnessError:
    """The error of a call that must fail for this reason."""
    with pytest.raises(HarnessError) as caught:
        await call
    assert caught.value.reason is reason, caught.value
    return caught.value
