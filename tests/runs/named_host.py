"""A toy adapter that derives the names of its sessions and says which one each turn came with: `python -m tests.runs.named_host --listen ADDRESS`.

It serves as the harness `reference`, so that the mesh of the tests takes it as that.
"""

from collections.abc import AsyncIterator

from adapters.sdk import events
from adapters.sdk.capabilities import NATIVE, build_descriptor, capability
from adapters.sdk.contract import Turn
from adapters.sdk.serve import run_adapter_main
from adapters.sdk.session import CallerAssignedSessions, ClosedSession, ProviderSessionContext, ProviderSessionManager
from adapters.sdk.simple import SimpleAdapter
from harness.adapter.v1 import descriptor_pb2


class _CountedSessions(CallerAssignedSessions):
    opened = 0
    closed = "nobody"

    async def open(self, context: ProviderSessionContext) -> str:
        self.opened += 1
        return await super().open(context)

    async def close(self, session: ClosedSession) -> None:
        self.closed = session.agent_id


class NamedAdapter(SimpleAdapter):
    """Answers with the name of the turn's session, how often one was opened, and whose was closed last."""

    def __init__(self) -> None:
        self._sessions = _CountedSessions("toy")

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        keys = ("stream.text", "session.multi_turn", "session.clear", "thread.durable_commit")
        return build_descriptor(
            harness_id="reference",
            display_name="Named",
            adapter_version="0.1.0",
            capabilities={key: capability(NATIVE) for key in keys},
            thread_state=descriptor_pb2.THREAD_STATE_STRATEGY_REMOTE_MANAGED,
            session_ids=descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED,
        )

    @property
    def session_manager(self) -> ProviderSessionManager:
        return self._sessions

    async def stream(self, turn: Turn) -> AsyncIterator[events.Draft]:
        yield events.text(f"{turn.native_session_id} {self._sessions.opened} {self._sessions.closed}")
        yield events.completed("end_turn")


if __name__ == "__main__":
    run_adapter_main(NamedAdapter, "tests.runs.named_host")
