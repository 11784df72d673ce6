"""Which harnesses there are, and what is shown of them."""

from services.common.capabilities import KEYS
from tests.catalog.processes import AVAILABLE, Client


async def test_a_harness_is_listed_with_profiles_options_and_all_capabilities(client: Client) -> None:
    listed = await client.list()
    assert listed.contract_version == 1
    assert listed.catalog_revision.startswith("cat_")
    (harness,) = listed.harnesses
    assert (harness.display_name, harness.adapter_version, harness.sdk_version) == ("Toy harness", "1.2.3", "9.1")
    assert harness.availability == AVAILABLE
    assert harness.reason == ""
    assert [profile.profile_id for profile in harness.profiles] == ["default", "sandboxed", "inside"]
    assert "max_turns" in harness.options_schema["properties"]
    assert len(KEYS) == 38
    assert set(harness.capabilities) == set(KEYS)
    assert harness.capabilities["stream.text"].level == 1
    assert harness.capabilities["tool.mcp"].level == 4
    assert harness.capabilities["subagents"].level == 3
