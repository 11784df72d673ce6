"""What every execution shares in one process, and what is the same for all calls made on behalf of a run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from harness.common.v1 import capability_token_pb2, fence_pb2
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner
from services.common.clock import Clock
from services.common.ids import Identity, new_request_id
from services.common.tasks import BackgroundTasks
from services.common.tracing import current_traceparent
from services.runs.appending import Publisher
from services.runs.bus import DispatchBus
from services.runs.clients.catalog import CatalogClient
from services.runs.clients.runtime import RuntimeClient
from services.runs.clients.sessions import SessionsClient
from services.runs.log import SegmentLog
from services.runs.run import Run
from services.runs.settings import RunsSettings
from services.runs.store import RunStore
from services.runs.tools.store import CallStore

PROTOCOL_VERSION: Final = 1
STATE_AUDIENCE: Final = "state"
TOOL_AUDIENCE: Final = "tool"
MODEL_AUDIENCE: Final = "model"
FILES_AUDIENCE: Final = "files"
_LIFE: Final = new_request_id()
_ATTEMPTS: Final = itertools.count(1)


@dataclass(frozen=True)
class Engine:
    """The parts an execution works with. `holder` names this life of this process on the leases it holds."""

    settings: RunsSettings
    store: RunStore
    calls: CallStore
    log: SegmentLog
    publisher: Publisher
    bus: DispatchBus
    catalog: CatalogClient
    sessions: SessionsClient
    runtimes: RuntimeClient
    signer: CapabilitySigner
    identity: Identity
    tasks: BackgroundTasks
    clock: Clock
    holder: str

    def now(self) -> int:
        """Unix milliseconds, as run documents keep them."""
        return int(self.clock.wall() * 1000)

    def stamp(self) -> Timestamp:
        """The time of an event that is accepted now."""
        stamp = Timestamp()
        stamp.FromNanoseconds(int(self.clock.wall() * 1e9))
        return stamp

    def state_token(self, run: Run, runtime_generation: int) -> capability_token_pb2.CapabilityToken:
        """The run's token for the thread-state facade; it ends with the run's deadline (worker protocol, Facades)."""
        return self._token(STATE_AUDIENCE, run, runtime_generation, ())

    def tool_token(
        self, run: Run, runtime_generation: int, tools: tuple[str, ...]
    ) -> capability_token_pb2.CapabilityToken:
        """The run's token for the tool broker; `tools` are marks of those it opens."""
        return self._token(TOOL_AUDIENCE, run, runtime_generation, tools)

    def model_token(
        self, run: Run, runtime_generation: int, model_endpoint: str
    ) -> capability_token_pb2.CapabilityToken:
        """The run's token for the model egress; it opens the endpoint of the run's profile alone (I28)."""
        return self._token(MODEL_AUDIENCE, run, runtime_generation, (), model_endpoint)

    def files_token(
        self, run: Run, runtime_generation: int, file_ids: tuple[str, ...]
    ) -> capability_token_pb2.CapabilityToken:
        """The run's token for the file facade; it opens the files that the run names alone (I28)."""
        return self._token(FILES_AUDIENCE, run, runtime_generation, (), file_ids=file_ids)

    def _token(
        self,
        audience: str,
        run: Run,
        runtime_generation: int,
        tools: tuple[str, ...],
        model_endpoint: str = "",
        file_ids: tuple[str, ...] = (),
    ) -> capability_token_pb2.CapabilityToken:
        if run.deadline_at is None:
            raise ValueError("a run has a deadline before it gets a token")
        capability = Capability(
            audience=audience,
            binding_id=run.binding_id,
            epoch=run.epoch,
            runtime_generation=runtime_generation,
            run_id=run.run_id,
            tool_ids=tools,
            model_endpoint=model_endpoint,
            file_ids=file_ids,
        )
        token = capability_token_pb2.CapabilityToken(audience=audience)
        token.value = self.signer.sign(capability, deadline_at=run.deadline_at / 1000)
        token.expires_at.FromMilliseconds(run.deadline_at)
        return token


def fence_of(run: Run, runtime_generation: int) -> fence_pb2.Fence:
    """The whole fence of a call that changes something on behalf of a run: both generations and the turn, always."""
    return fence_pb2.Fence(
        protocol_version=PROTOCOL_VERSION,
        binding_id=run.binding_id,
        epoch=run.epoch,
        runtime_generation=runtime_generation,
        turn=run.turn,
        run_id=run.run_id,
        run_generation=run.run_generation,
        request_id=_attempt(),
        traceparent=current_traceparent(),
    )


def _attempt() -> str:
    """Unique for each attempt of a call."""
    return f"{_LIFE}.{next(_ATTEMPTS)}"


def binding_fence(binding_id: str, epoch: int, runtime_generation: int) -> fence_pb2.Fence:
    """The fence of a call about a binding's runtime where no run is involved."""
    return fence_pb2.Fence(
        protocol_version=PROTOCOL_VERSION,
        binding_id=binding_id,
        epoch=epoch,
        runtime_generation=runtime_generation,
        request_id=_attempt(),
        traceparent=current_traceparent(),
    )
