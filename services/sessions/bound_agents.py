"""Whether conversations still need what an agent has under a profile (I4: a binding keeps its pins until it is cleared)."""

from typing import Final, Protocol

from services.sessions.binding import BindingDocument

MAX_LOOKED_THROUGH: Final = 1_000
"""Bindings of one agent. One that has more counts as bound: what is kept too long costs little, what is removed too early costs a conversation (I35)."""


class OpenBindings(Protocol):
    """What is needed kept; see `services.sessions.store`."""

    async def bindings_of_agent(self, agent_id: str, limit: int) -> list[BindingDocument]: ...


async def is_bound(store: OpenBindings, agent_id: str, harness_id: str, profile_id: str) -> bool:
    """Whether an open binding of the agent is pinned to this harness and profile. A cleared one is pinned to nothing."""
    found = await store.bindings_of_agent(agent_id, MAX_LOOKED_THROUGH + 1)
    if len(found) > MAX_LOOKED_THROUGH:
        return True
    pins = (document["pin"] for document in found)
    return any(pin is not None and (pin["harness_id"], pin["profile_id"]) == (harness_id, profile_id) for pin in pins)
