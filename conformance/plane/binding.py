"""One conversation as the control plane holds it: its fence, its runtime, its turns, its committed state."""

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from conformance.plane.broker import Tools, descriptors
from conformance.plane.facades import MODEL, Facades
from conformance.plane.files import AUDIENCE as FILES
from conformance.plane.files import GivenFile, RunFiles
from conformance.plane.machine import TargetProcess
from conformance.plane.observations import Observations
from conformance.plane.rehearsals import is_rehearsal
from conformance.plane.run import Draft, Run
from conformance.plane.target import Target
from conformance.plane.thread import Thread
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import blueprint_pb2, capability_token_pb2, fence_pb2, placement_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2
from harness.worker.v1 import worker_service_pb2

TURN_SECONDS = 300.0
# Far beyond what making a runtime, or a look at it, needs.
CREATE_SECONDS = 60.0
RESTART_SECONDS = 60.0
_numbers = itertools.count(1)


@dataclass
class Setting:
    """What is the same for all bindings of one certification."""

    target: Target
    facades: Facades
    descriptor: descriptor_pb2.Descriptor
    observations: Observations
    worker: bool
    placement: "placement_pb2.Placement.ValueType"
    profile_settings: dict[str, Any]
    options: dict[str, Any]
    # Of the target's process when the certification began; empty: it was not asked.
    incarnation: str = ""
    # The target's process, if the kit was told it.
    process: TargetProcess | None = None


@dataclass
class Binding:
    """`turn` counts what was given to runs; `thread` is what is committed. Two bindings never share anything but the target."""

    setting: Setting
    target: Target
    binding_id: str = field(default_factory=lambda: f"kit-{secrets.token_hex(8)}")
    epoch: int = 1
    runtime_generation: int = 1
    limits: runtime_pb2.RuntimeLimits = field(default_factory=runtime_pb2.RuntimeLimits)
    thread: Thread = field(default_factory=Thread)
    tools: Tools = field(default_factory=Tools)
    turn: int = 0
    incarnation: str = ""
    native_session_id: str = ""
    # Skills that its agent names.
    skills: tuple[str, ...] = ()
    # How many of its turns were rehearsals.
    rehearsed: int = 0

    @property
    def takes_files(self) -> bool:
        """Whether the target claims to take files; only then it is told where they are, as by a mesh."""
        claims = self.setting.descriptor.capabilities
        return any(key in claims and claims[key].level in (1, 2) for key in ("input.images", "input.documents"))

    # --- what calls carry ---

    def fence(self, turn: int = 0, run_id: str = "", run_generation: int = 1, **changes: Any) -> fence_pb2.Fence:
        """The fence of a run of this binding, or of the binding alone."""
        values: dict[str, Any] = {
            "protocol_version": 1,
            "binding_id": self.binding_id,
            "epoch": self.epoch,
            "runtime_generation": self.runtime_generation,
            "turn": turn,
            "run_id": run_id,
            "run_generation": run_generation if run_id else 0,
            "request_id": secrets.token_hex(8),
        }
        return fence_pb2.Fence(**{**values, **changes})

    def context(self) -> runtime_pb2.RuntimeContext:
        """What its runtime is created with."""
        context = runtime_pb2.RuntimeContext(
            contract_version=1,
            agent_version=1,
            placement=self.setting.placement,
            blueprint=self.blueprint(),
            tools=descriptors(),
            facades=self.setting.facades.endpoints(files=self.takes_files),
            limits=self.limits,
        )
        json_format.ParseDict(self.setting.profile_settings, context.profile_settings)
        return context

    def blueprint(self) -> blueprint_pb2.AgentBlueprint:
        """A small agent of the target's harness, with the kit's tools."""
        blueprint = blueprint_pb2.AgentBlueprint(
            id="kit",
            name="Certification",
            harness=blueprint_pb2.HarnessSelection(id=self.setting.descriptor.harness_id, profile_id="default"),
            thread=blueprint_pb2.ThreadSpec(persistence=blueprint_pb2.THREAD_PERSISTENCE_DURABLE),
        )
        blueprint.skills.extend(self.skills)
        json_format.ParseDict(self.setting.options, blueprint.harness.options)
        # As a normalised blueprint has it: a call of a sensitive tool may have to wait, no other.
        blueprint.tools.approval_policy = blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY
        for tool in descriptors():
            policy = blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY
            blueprint.tools.bindings.add(tool_id=tool.tool_id, approval_policy=policy)
        return blueprint

    # --- the runtime ---

    async def create(self) -> bool:
        """Makes the runtime, or binds the worker; whether it was made now."""
        response = await self.target.ask(
            "Bind" if self.setting.worker else "CreateRuntime", self.create_call(self.fence())
        )
        self.incarnation = response.incarnation
        return True if self.setting.worker else response.created

    async def bound(self) -> None:
        """Binds the worker, unless it is bound by us."""
        if not self.incarnation:
            await self.create()

    def create_call(self, fence: fence_pb2.Fence, harness_id: str = "", context: Any = None) -> Any:
        """The call of CreateRuntime or Bind."""
        context = self.context() if context is None else context
        if self.setting.worker:
            request = worker_service_pb2.BindRequest(
                fence=fence, harness_id=harness_id or self.setting.descriptor.harness_id, context=context
            )
            return self.target.worker.Bind(request, timeout=CREATE_SECONDS, metadata=self.target.metadata)
        created = adapter_service_pb2.CreateRuntimeRequest(fence=fence, context=context)
        return self.target.adapter.CreateRuntime(created, timeout=CREATE_SECONDS, metadata=self.target.metadata)

    def initialize_call(self, fence: fence_pb2.Fence | None = None) -> Any:
        """The call of Initialize."""
        request = runtime_service_pb2.InitializeRequest(fence=fence or self.fence())
        return self.target.runtime.Initialize(request, timeout=CREATE_SECONDS, metadata=self.target.metadata)

    async def restart(self) -> None:
        """Releases the provider's clients."""
        await self.target.ask("Restart", self.restart_call())

    def restart_call(self) -> Any:
        """The call of Restart."""
        request = runtime_service_pb2.RestartRequest(fence=self.fence())
        return self.target.runtime.Restart(request, timeout=RESTART_SECONDS, metadata=self.target.metadata)

    async def cleanup(self, seconds: float = 30.0, fence: fence_pb2.Fence | None = None) -> None:
        """Releases the runtime."""
        request = runtime_service_pb2.CleanupRequest(fence=fence or self.fence())
        call = self.target.runtime.Cleanup(request, timeout=seconds, metadata=self.target.metadata)
        await self.target.ask("Cleanup", call)

    async def replace(self, target: Target | None = None) -> None:
        """A runtime of the next generation, at `target` if given: what is not in the head is lost."""
        self.runtime_generation += 1
        self.target = target or self.target
        await self.create()

    async def pending(self) -> runtime_pb2.PendingInterrupt | None:
        """The pause that the runtime knows of."""
        request = runtime_service_pb2.GetPendingInterruptRequest(fence=self.fence())
        call = self.target.runtime.GetPendingInterrupt(request, timeout=CREATE_SECONDS, metadata=self.target.metadata)
        response = await self.target.ask("GetPendingInterrupt", call)
        return response.interrupt if response.HasField("interrupt") else None

    # --- turns ---

    def run(
        self,
        message: str,
        *,
        seconds: float = TURN_SECONDS,
        turn: int | None = None,
        files: Sequence[GivenFile] = (),
        **changes: Any,
    ) -> Run:
        """The next turn's run with these files, not started yet. `seconds`: its deadline from now."""
        self.rehearsed += is_rehearsal(message)
        if turn is None:
            self.turn += 1
            turn = self.turn
        fence = self.fence(turn, f"run-{next(_numbers)}-{secrets.token_hex(4)}", **changes)
        fence.traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        given = runtime_pb2.TurnInput(
            message=message,
            system_prompt=self.target.canaries.plant("system-prompt"),
            user_id="kit-user",
            conversation_id="kit-conversation",
            thread_revision=self.thread.revision,
            native_session_id=self.native_session_id,
        )
        given.deadline.FromMicroseconds(int((time.time() + seconds) * 1e6))
        run = Run(self.target, self, fence, given, self.incarnation)
        grants = self.setting.facades.grants
        given.files.extend(file.ref() for file in files)
        behinds: dict[str, Any] = {"state": self.thread, "tool": self.tools}
        if files:
            behinds[FILES] = RunFiles.of(files)
        for audience, behind in behinds.items():
            token, grant = grants.issue(audience, fence, behind)
            given.tokens.append(
                capability_token_pb2.CapabilityToken(audience=audience, value=token, expires_at=given.deadline)
            )
            run.grants[audience] = grant
        if self.setting.facades.model:
            # No facade of the kit's takes it: like all tokens it must not come back, and who takes it is the driver's affair.
            secret = self.target.canaries.plant("model-token")
            given.tokens.append(
                capability_token_pb2.CapabilityToken(audience=MODEL, value=secret, expires_at=given.deadline)
            )
        return run

    async def say(self, message: str, **settings: Any) -> list[Draft]:
        """Runs the next turn to its end, its state committed; its drafts."""
        return await self.run(message, **settings).play()

    async def resume(
        self, interrupted: Run, decision: runtime_pb2.ResumeDecision, message: str = "", **settings: Any
    ) -> Run:
        """Runs the turn that answers an interrupt to its end; the decision is stored where the broker reads it."""
        run = self.resumed(interrupted, decision, message, **settings)
        await run.play()
        return run

    def resumed(
        self, interrupted: Run, decision: runtime_pb2.ResumeDecision, message: str = "", **settings: Any
    ) -> Run:
        """The run that answers an interrupt, not started yet."""
        if decision.HasField("tool_decisions"):
            self.tools.decide(decision.tool_decisions)
        run = self.run(message, **settings)
        run.decision = runtime_pb2.ResumeDecision()
        run.decision.CopyFrom(decision)
        if not run.decision.interrupted_run_id:
            run.decision.interrupted_run_id = interrupted.fence.run_id
        return run
