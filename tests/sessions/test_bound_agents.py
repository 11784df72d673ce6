"""Which agents still have conversations under a profile, for whoever keeps something for them at a provider (I4)."""

from harness.session.v1 import session_service_pb2 as session
from tests.sessions.processes import Client


async def bound(client: Client, *agents: str, harness: str = "reference", profile: str = "default") -> set[str]:
    request = session.ListBoundAgentsRequest(harness_id=harness, profile_id=profile, agent_ids=agents)
    return set((await client.call("ListBoundAgents", request)).agent_ids)


async def test_an_agent_is_bound_as_long_as_a_conversation_of_it_is_not_cleared(client: Client) -> None:
    assert await bound(client, client.agent) == set()
    binding = await client.granted("run-1", "a")
    other = await client.granted("run-2", "b", subject="another")
    assert await bound(client, client.agent, "nobody") == {client.agent}
    # Of this harness and profile alone.
    assert await bound(client, client.agent, profile="other") == set()
    assert await bound(client, client.agent, harness="other") == set()
    await client.release(binding.binding_id, "run-1")
    assert await bound(client, client.agent) == {client.agent}
    await client.begin_clear("a")
    await client.finish_clear(binding.binding_id)
    # Somebody else's conversation holds it all the same.
    assert await bound(client, client.agent) == {client.agent}
    await client.release(other.binding_id, "run-2")
    await client.begin_clear("b", subject="another")
    await client.finish_clear(other.binding_id)
    assert await bound(client, client.agent) == set()
