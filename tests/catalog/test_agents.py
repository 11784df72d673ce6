"""Agents over gRPC: validate, save, read, disable."""

from tests.catalog.processes import Client, blueprint


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
    assert saved.version.blueprint == report.normalized_blueprint
    assert saved.version.config_fingerprint == report.config_fingerprint
    assert (await client.get()).version == saved.version
