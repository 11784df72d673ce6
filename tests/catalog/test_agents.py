"""Agents over gRPC: save, read, page, disable, resolve."""

import base64
from typing import Any

from harness.catalog.v1 import agent_service_pb2, harness_service_pb2
from harness.catalog.v1.harness_service_pb2_grpc import HarnessServiceStub
from services.common.channels import connect
from services.common.errors import Reason
from tests.catalog.processes import Client, blueprint, message, refused


async def test_a_draft_is_validated_and_saved_as_version_one(client: Client) -> None:
    report = await client.validate(blueprint())
    assert report.valid
    saved = await client.save(
        blueprint(),
        expected_revision=0,
        catalog_revision=report.catalog_revision,
        config_fingerprint=report.config_fingerprint,
    )
    assert (saved.record.current_version, saved.record.revision, saved.record.enabled) == (1, 1, True)
    assert (saved.record.name, saved.record.harness_id) == ("Writer", "toy")
    assert saved.record.created_at == saved.record.updated_at
    assert saved.version.blueprint == report.normalized_blueprint
    assert saved.version.config_fingerprint == report.config_fingerprint
    assert saved.version.catalog_revision == report.catalog_revision
    assert (await client.get()).version == saved.version
    assert (await client.get()).record == saved.record


async def test_an_equal_blueprint_makes_no_version_but_enables_again(client: Client) -> None:
    first = await client.save(blueprint())
    again = await client.save(blueprint(description="", harness={"id": "toy", "profile_id": "default"}))
    assert again == first
    await client.disable()
    enabled = await client.save(blueprint())
    assert (enabled.record.current_version, enabled.record.revision, enabled.record.enabled) == (1, 3, True)


async def test_i4_a_disabled_agents_history_stays_readable(client: Client) -> None:
    await client.save(blueprint(name="One"))
    second = await client.save(blueprint(name="Two"))
    disabled = await client.disable()
    assert (disabled.enabled, disabled.revision, disabled.current_version) == (False, 3, 2)
    assert await client.disable() == disabled
    assert (await client.get()).record == disabled
    assert (await client.version(1)).version.blueprint.name == "One"
    assert [version.version for version in (await client.versions()).versions] == [2, 1]
    resolved = await client.resolve_agent()
    assert not resolved.record.enabled
    assert resolved.version == second.version
    assert (await client.resolve_agent(version=1)).version.blueprint.name == "One"
    third = await client.save(blueprint(name="Three"))
    assert (third.record.enabled, third.version.version) == (True, 3)


async def test_i4_an_edit_changes_no_version_that_is_there(client: Client) -> None:
    first = await client.save(blueprint(name="One"))
    assert (await client.resolve_agent(version=1)).version == first.version
    await client.save(blueprint(name="Two"))
    assert (await client.resolve_agent(version=1)).version == first.version
    assert (await client.resolve_agent()).version.blueprint.name == "Two"


async def test_resolve_agent_gives_the_record_as_it_is_now(client: Client) -> None:
    await client.save(blueprint())
    light = await client.resolve_agent(record_only=True)
    assert light.record.enabled
    assert not light.HasField("version")
    await client.disable()
    assert not (await client.resolve_agent(record_only=True)).record.enabled


async def test_what_is_not_there_is_not_found(client: Client) -> None:
    for call in (client.get(), client.versions(), client.version(1), client.disable(), client.resolve_agent()):
        await refused(Reason.NOT_FOUND, call)
    await client.save(blueprint())
    await refused(Reason.NOT_FOUND, client.version(2))
    await refused(Reason.NOT_FOUND, client.resolve_agent(version=2))


async def test_hostile_ids_are_refused(client: Client) -> None:
    for agent_id in ("", "../x", "a/b", "a\0b", "a b", "ä", "x" * 129, "-x", "a\n"):
        error = await refused(Reason.INVALID_REQUEST, client.get(agent_id))
        assert error.details[0].path == "agent_id"
        await refused(Reason.INVALID_REQUEST, client.save(blueprint(agent_id=agent_id)))


async def test_the_blueprint_must_be_of_the_agent(client: Client) -> None:
    request = agent_service_pb2.SaveAgentRequest(agent_id="writer", blueprint=message(blueprint("other")))
    error = await refused(Reason.INVALID_REQUEST, client.peer.call(client.agents.SaveAgent, request))
    assert [(issue.path, issue.code) for issue in error.details] == [("blueprint.id", "mismatch")]


async def pages(call: Any, **more: Any) -> list[list[Any]]:
    found: list[list[Any]] = []
    token = ""
    while True:
        page = await call(page_token=token, **more)
        found.append(list(page.agents if hasattr(page, "agents") else page.versions))
        token = page.next_page_token
        if not token:
            return found


async def test_listings_are_paged_in_order_without_loss(client: Client) -> None:
    for number in range(5):
        await client.save(blueprint(f"agent-{number}"))
    for number in range(4):
        await client.save(blueprint("agent-0", name=f"Name {number}"))
    listed = await pages(client.list_agents, page_size=2)
    assert [[one.agent_id for one in page] for page in listed] == [
        ["agent-0", "agent-1"],
        ["agent-2", "agent-3"],
        ["agent-4"],
    ]
    versions = await pages(client.versions, agent_id="agent-0", page_size=2)
    assert [[one.version for one in page] for page in versions] == [[5, 4], [3, 2], [1]]
    assert [[one.version for one in page] for page in await pages(client.versions, agent_id="agent-0")] == [
        [5, 4, 3, 2, 1]
    ]
    await refused(Reason.INVALID_REQUEST, client.list_agents(page_size=201))


def token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


async def test_a_bad_page_token_is_refused(client: Client) -> None:
    encoded = [token(text) for text in ("a:../x", "a:", "v:writer:1", "a:b\0c")]
    for bad in ("x", "!!!", "ä", token("a:b") + "=", "a" * 200, *encoded):
        error = await refused(Reason.INVALID_REQUEST, client.list_agents(page_token=bad))
        assert error.details[0].path == "page_token"


async def test_a_version_page_token_is_of_its_agent(client: Client) -> None:
    await client.save(blueprint())
    for bad in (
        token("v:other:3"),
        token("v:writer:0"),
        token("v:writer:-1"),
        token("v:writer:99999999999"),
        token("a:writer"),
    ):
        await refused(Reason.INVALID_REQUEST, client.versions(page_token=bad))
    assert [version.version for version in (await client.versions(page_token=token("v:writer:9"))).versions] == [1]


async def test_calls_without_the_credential_are_refused(client: Client) -> None:
    stranger = connect(client.catalog.address)
    stub: Any = HarnessServiceStub(stranger.channel)
    await refused(Reason.UNAUTHENTICATED, stranger.call(stub.ListHarnesses, harness_service_pb2.ListHarnessesRequest()))
    await stranger.close()
