"""Adapters that come, go, hang, flood and lie: each is its own problem (I18, I23)."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc.aio

from services.common.capabilities import KEYS
from services.common.errors import Reason
from tests.catalog.conftest import Host, Start
from tests.catalog.processes import (
    AVAILABLE,
    BLOCKED,
    UNAVAILABLE,
    Client,
    blueprint,
    end,
    operator,
    refused,
    spawn,
    toy_entry,
    until,
)
from tests.catalog.toy_adapter import descriptor

CANARY = "canary-9f31"


def is_available(harness: Any) -> bool:
    return harness.availability == AVAILABLE


async def spawn_adapter(folder: Path, incarnation: str, harness_id: str = "toy") -> Any:
    socket = folder / "run" / f"{harness_id}.sock"
    says = {"address": f"unix:{socket}", "descriptor": descriptor(harness_id), "incarnation": incarnation}
    file = folder / f"{incarnation}.json"
    file.write_text(json.dumps(says))
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    process, line = await spawn(
        [sys.executable, "-m", "tests.catalog.toy_adapter", str(file)], keep, folder / "toy.log"
    )
    assert line, (folder / "toy.log").read_text()
    return process


async def test_an_adapter_never_seen_is_listed_as_unavailable(start: Start) -> None:
    client = await start()
    harness = await client.harness()
    assert harness.availability == UNAVAILABLE
    assert harness.reason
    assert set(harness.capabilities) == set(KEYS)
    assert all(capability.level == 4 for capability in harness.capabilities.values())
    error = await refused(Reason.HARNESS_UNAVAILABLE, client.resolve())
    assert error.retryable
    assert await client.issues(blueprint()) == {("harness.id", "harness_unavailable")}


async def test_an_adapter_that_dies_is_shown_with_what_was_known_and_found_again_when_it_is_back(
    folder: Path, start: Start
) -> None:
    first = await spawn_adapter(folder, "inc-first")
    # So rare a poll that only the connection's end and the request itself can tell.
    client = await start(adapter_poll_seconds=300)
    await until(client.harness, is_available)
    revision = (await client.list()).catalog_revision
    assert (await client.resolve()).adapter_incarnation == "inc-first"
    assert (await client.health()).HasField("report")
    await end(first, signal.SIGKILL)
    gone = await until(client.harness, lambda harness: not is_available(harness))
    assert gone.availability == UNAVAILABLE
    assert not (await client.health()).HasField("report")
    assert gone.display_name == "Toy harness"
    assert (await client.list()).catalog_revision == revision
    report = await client.validate(blueprint())
    assert report.valid  # known is enough; up is not needed
    assert (await client.save(blueprint())).record.current_version == 1
    await refused(Reason.HARNESS_UNAVAILABLE, client.resolve())
    second = await spawn_adapter(folder, "inc-second")
    try:
        await until(client.harness, is_available)
        assert (await client.resolve()).adapter_incarnation == "inc-second"
        assert (await client.list()).catalog_revision == revision
    finally:
        await end(second)


async def test_a_restart_between_two_looks_is_noticed_by_the_connection(folder: Path, start: Start) -> None:
    first = await spawn_adapter(folder, "inc-first")
    client = await start(adapter_poll_seconds=300)
    await until(client.harness, is_available)
    await end(first, signal.SIGKILL)
    second = await spawn_adapter(folder, "inc-second")

    async def incarnation() -> str:
        if not is_available(await client.harness()):
            return ""
        return (await client.resolve()).adapter_incarnation

    try:
        await until(incarnation, lambda seen: seen == "inc-second")
    finally:
        await end(second)


async def test_a_catalog_restarted_with_the_adapter_away_still_shows_it_and_serves_agents(
    host: Host, start: Start, servers: dict[str, grpc.aio.Server]
) -> None:
    await host()
    client = await start()
    await until(client.harness, is_available)
    saved = await client.save(blueprint())
    revision = (await client.list()).catalog_revision
    assert await client.catalog.stop() == 0
    await servers.pop("toy").stop(0)
    again = await start(name="b")
    harness = await again.harness()
    assert harness.availability == UNAVAILABLE
    assert harness.display_name == "Toy harness"
    assert harness.capabilities["stream.text"].level == 1
    assert (await again.list()).catalog_revision == revision
    assert (await again.resolve_agent()).version == saved.version
    assert (await again.validate(blueprint())).valid


async def test_i23_a_hanging_a_flooding_and_a_failing_adapter_disturb_no_other(host: Host, start: Start) -> None:
    hanging = await host("hanging", hang=["GetDescriptor", "CheckHealth", "Evaluate"])
    await host("flooding", descriptor=descriptor("flooding", description="x" * 12_000_000))
    await host("failing", fail={"GetDescriptor": ["INTERNAL", CANARY]})
    await host("toy")
    entries = [toy_entry(name) for name in ("hanging", "flooding", "failing", "toy")]
    async with asyncio.timeout(45):  # below the hanging adapter's deadline: nothing may wait for it, the start included
        client = await start(operator(*entries), adapter_timeout_seconds=60)
        await until(client.harness, is_available)
        assert (await client.validate(blueprint())).valid
        await client.save(blueprint())
        assert (await client.resolve()).adapter_incarnation == "inc-1"
        for name in ("hanging", "flooding", "failing"):
            harness = await client.harness(name)
            assert harness.availability != AVAILABLE
            assert CANARY not in harness.reason
        assert (
            await until(lambda: client.harness("flooding"), lambda harness: "more of itself" in harness.reason)
        ).reason
    hanging.released.set()


async def test_an_adapter_that_is_only_slow_stays_available_for_some_looks(host: Host, start: Start) -> None:
    adapter = await host()
    client = await start(adapter_timeout_seconds=0.2, adapter_poll_seconds=0.1)
    await until(client.harness, is_available)
    adapter.says["hang"] = ["CheckHealth"]
    asked = adapter.asked["CheckHealth"]

    async def next_question() -> int:
        return adapter.asked["CheckHealth"]

    await until(next_question, lambda number: number >= asked + 2)
    harness = await until(client.harness, lambda harness: not is_available(harness))
    assert adapter.asked["CheckHealth"] >= asked + 3
    assert harness.reason == "The adapter does not answer in time."
    adapter.released.set()
    adapter.says["hang"] = []
    await until(client.harness, is_available)


async def test_health_is_passed_on_without_what_may_not_be_shown(host: Host, start: Start) -> None:
    adapter = await host(
        health={
            "status": "HEALTH_STATUS_DEGRADED",
            "checks": [
                {"name": "provider", "status": "HEALTH_STATUS_DEGRADED", "reason": f"https://{CANARY}.test refused"},
                {"name": "storage", "status": "HEALTH_STATUS_HEALTHY"},
            ],
            "capacity": {"active": 3, "limit": 8, "pending": 1},
        }
    )
    client = await start()
    health = await until(client.health, is_available)
    assert [check.name for check in health.report.checks] == ["provider", "storage"]
    assert CANARY not in health.report.checks[0].reason
    assert health.report.checks[0].reason
    assert health.report.capacity.limit == 8
    listed = (await client.harness()).reason
    assert listed == f"Works in part (provider): {health.report.checks[0].reason}"
    unwell = {"name": "configuration", "status": "HEALTH_STATUS_UNHEALTHY", "reason": "There is no key: set KEY_FILE."}
    adapter.says["health"] = {"status": "HEALTH_STATUS_UNHEALTHY", "checks": [unwell]}
    health = await until(client.health, lambda health: not is_available(health))
    assert health.report.status == 3
    # Whoever lists harnesses reads what to do, without a second question.
    assert (await client.harness()).reason == "The adapter is not well (configuration): There is no key: set KEY_FILE."
    await refused(Reason.HARNESS_UNAVAILABLE, client.resolve())
    await refused(Reason.NOT_FOUND, client.health("other"))


async def test_i18_a_descriptor_that_breaks_a_rule_blocks_its_harness_until_it_is_mended(
    host: Host, start: Start
) -> None:
    adapter = await host(descriptor=descriptor(presentation={"command": CANARY}))
    client = await start(adapter_poll_seconds=0.1)
    harness = await until(client.harness, lambda harness: harness.availability == BLOCKED)
    assert harness.certification == 3
    assert "presentation" in harness.reason
    assert CANARY not in str(harness)
    assert await client.issues(blueprint()) == {("harness.id", "harness_contract_incompatible")}
    error = await refused(Reason.HARNESS_CONTRACT_INCOMPATIBLE, client.resolve())
    assert CANARY not in error.message
    for broken in (
        descriptor("other"),
        descriptor(contract_versions=[2]),
        descriptor(contract_versions=[]),
        descriptor(capabilities={f"UPPER {CANARY}": {"level": 1}}),
    ):
        adapter.says["descriptor"] = broken
        before = harness.reason

        async def look() -> Any:
            await client.health()  # asks the adapter, rather than waiting for the next look
            return await client.harness()

        harness = await until(look, lambda harness, before=before: harness.reason != before)
        assert harness.availability == BLOCKED
        assert CANARY not in str(harness)
    revision = (await client.list()).catalog_revision
    adapter.says["descriptor"] = descriptor()
    harness = await until(client.harness, is_available)
    assert harness.certification == 1
    assert (await client.list()).catalog_revision != revision


async def test_i23_an_address_that_answers_with_the_id_of_another_is_blocked_alone_until_it_is_mended(
    host: Host, start: Start
) -> None:
    await host("toy")
    # A second process says that it is toy as well, and one says an id that nobody listed.
    twin = await host("twin", descriptor=descriptor("toy"))
    await host("stray", descriptor=descriptor("unlisted"))
    client = await start(operator(*(toy_entry(name) for name in ("toy", "twin", "stray"))), adapter_poll_seconds=0.1)
    await until(client.harness, is_available)
    for name in ("twin", "stray"):

        async def look(name: str = name) -> Any:
            return await client.harness(name)

        harness = await until(look, lambda harness: harness.availability == BLOCKED)
        assert harness.certification == 3
        assert "that of another harness" in harness.reason
        assert "unlisted" not in harness.reason
        await refused(Reason.HARNESS_CONTRACT_INCOMPATIBLE, client.resolve(name))
    assert is_available(await client.harness())
    assert (await client.resolve()).adapter_address.endswith("/toy.sock")
    assert (await client.validate(blueprint())).valid
    twin.says["descriptor"] = descriptor("twin")

    async def mended() -> Any:
        return await client.harness("twin")

    await until(mended, is_available)


async def test_what_answers_at_an_address_may_be_no_adapter(host: Host, start: Start) -> None:
    await host(fail={"GetDescriptor": ["UNIMPLEMENTED", CANARY]})
    client = await start()
    harness = await until(client.harness, lambda harness: "no adapter" in harness.reason)
    assert harness.availability == UNAVAILABLE


async def test_a_disabled_harness_is_listed_as_blocked_and_never_called(host: Host, start: Start) -> None:
    off = await host("off")
    await host("toy")
    client = await start(operator(toy_entry("off", enabled=False), toy_entry()))
    await until(client.harness, is_available)
    assert (await client.harness("off")).availability == BLOCKED
    assert ("harness.id", "harness_disabled") in await client.issues(blueprint(harness={"id": "off"}))
    await refused(Reason.HARNESS_DISABLED, client.resolve("off"))
    assert (await client.health("off")).availability == BLOCKED
    assert off.asked == {}


async def test_the_adapter_is_called_with_its_token_only(host: Host, start: Start, folder: Path) -> None:
    (folder / "token").write_text("adapter-token-of-the-test")
    with_token, without = await host("one"), await host("two")
    client = await start(operator(toy_entry("one", token_file=str(folder / "token")), toy_entry("two")))
    for name in ("one", "two"):

        async def look(name: str = name) -> Any:
            return await client.harness(name)

        await until(look, is_available)
    assert set(with_token.tokens) == {"Bearer adapter-token-of-the-test"}
    assert set(without.tokens) == {""}


async def test_i28_the_token_of_a_host_is_told_with_its_address_and_nothing_else(
    host: Host, start: Start, folder: Path
) -> None:
    (folder / "token").write_text(CANARY)
    await host("one")
    await host("two")
    client = await start(operator(toy_entry("one", token_file=str(folder / "token")), toy_entry("two")))
    for name in ("one", "two"):

        async def look(name: str = name) -> Any:
            return await client.harness(name)

        await until(look, is_available)
    hosted = await client.resolve("one")
    assert hosted.adapter_token == CANARY
    assert (await client.resolve("one", "sandboxed")).adapter_token == ""
    assert (await client.resolve("two")).adapter_token == ""
    assert CANARY not in str(await client.list())
    assert CANARY not in client.catalog.log.read_text()


async def test_resolve_profile_tells_all_that_stands_behind_it(client: Client, folder: Path) -> None:
    found = await client.resolve()
    assert found.adapter_address == f"unix:{folder}/run/toy.sock"
    assert found.adapter_incarnation == "inc-1"
    assert found.placement == 1
    assert found.profile_settings["region"] == "canary-setting-77"
    assert (found.contract_version, found.max_run_seconds, found.max_concurrent_runs) == (1, 1200, 7)
    assert found.descriptor.harness_id == "toy"
    assert not found.descriptor.replay_safe
    assert not found.HasField("sandbox")
    sandboxed = await client.resolve(profile_id="sandboxed")
    assert sandboxed.adapter_address == ""
    assert sandboxed.sandbox.worker_module == "adapters.reference"
    assert (sandboxed.sandbox.isolation, sandboxed.sandbox.memory_mib, sandboxed.sandbox.idle_seconds) == (1, 256, 600)
    await refused(Reason.HARNESS_UNKNOWN, client.resolve("nobody"))
    await refused(Reason.HARNESS_UNKNOWN, client.resolve(profile_id="nothing"))
    await refused(Reason.HARNESS_CONTRACT_INCOMPATIBLE, client.resolve(profile_id="inside"))
    await refused(Reason.INVALID_REQUEST, client.resolve("../x"))


async def test_i18_clients_see_no_setting_address_module_or_incarnation(client: Client, folder: Path) -> None:
    await client.save(blueprint())
    shown = str(await client.list()) + str(await client.health()) + str(await client.validate(blueprint()))
    shown += str(await client.get())
    for hidden in ("canary-setting-77", str(folder), "unix:", "adapters.reference", "inc-1", "claimed-by-itself"):
        assert hidden not in shown
