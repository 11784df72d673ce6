"""Two catalogs of one environment: what one validated, the other saves (I16)."""

from typing import Any

from tests.catalog.conftest import Host, Start
from tests.catalog.processes import AVAILABLE, Client, blueprint, until
from tests.catalog.toy_adapter import descriptor


async def _available(client: Client) -> str:
    """The revision of a catalog that has seen its adapter."""
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    return (await client.list()).catalog_revision


async def test_i16_the_same_content_has_the_same_revision_and_who_saw_it_later_looks_before_it_refuses(
    host: Host, start: Start
) -> None:
    adapter = await host()
    first = await start(name="a", adapter_poll_seconds=0.1)
    # So rarely that it would not see the change within this test by itself.
    second = await start(name="b", adapter_poll_seconds=300)
    before = await _available(first)
    assert before == await _available(second)

    adapter.says["descriptor"] = descriptor(adapter_version="1.2.4")
    seen = await until(first.list, lambda listed: listed.catalog_revision != before)
    report = await first.validate(blueprint("writer"), seen.catalog_revision)
    assert report.valid

    async def validated_by_second() -> Any:
        # Looked at within the last second, an adapter is not looked at again.
        return await second.validate(blueprint("writer"), seen.catalog_revision)

    await until(validated_by_second, lambda report: report.valid)
    saved = await second.save(
        blueprint("writer"), catalog_revision=seen.catalog_revision, config_fingerprint=report.config_fingerprint
    )
    assert saved.version.catalog_revision == seen.catalog_revision
    assert (await first.get()).record.current_version == 1
