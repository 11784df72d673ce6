"""What a look of the sweep asks for."""

from __future__ import annotations

from pydantic import SecretStr

from services.common.channels import connect
from services.runs.clients.sessions import Binding, SessionsClient
from services.runs.sweep import Slots
from tests.runs.mesh import TOKEN, Client, Mesh


class Counted(SessionsClient):
    """The real client, counting what it asks."""

    asked = 0

    async def get(self, binding_id: str) -> tuple[Binding, bool]:
        self.asked += 1
        return await super().get(binding_id)


async def test_i35_the_holder_of_a_slot_is_asked_for_once_however_many_wait_for_it(mesh: Mesh, client: Client) -> None:
    agent = await client.agent()
    held = await client.reserve(agent, "held", "run_sweep_1", "key_1")
    await client.clear(agent, "held")
    archived = held.binding_id
    held = await client.reserve(agent, "held", "run_sweep_2", "key_2")
    peer = connect(mesh.address("sessions"), SecretStr(TOKEN))
    try:
        sessions = Counted(peer, peer)
        slots = Slots(sessions)
        assert [await slots.holder(held.binding_id) for _ in range(64)] == ["run_sweep_2"] * 64
        assert [await slots.holder(archived) for _ in range(64)] == [""] * 64
        assert sessions.asked == 2
    finally:
        await peer.close()
