"""Health over real gRPC: bounded whatever a check does, one hanging check hides no other, nothing is touched (contract, Health contract)."""

import asyncio

import pytest

from adapters.sdk import errors
from adapters.sdk.health import NAMES, Impaired, Probe
from adapters.sdk.host.dependencies import dependency_problem, fits
from adapters.sdk.host.health import MAX_CHECKS, HealthLooks
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.registry import RuntimeRegistry
from harness.adapter.v1 import adapter_service_pb2 as pb2
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import health_pb2
from harness.worker.v1 import worker_service_pb2
from tests.adapters.scripted import forever, steered, three

UNKNOWN, HEALTHY, DEGRADED, UNHEALTHY = 0, 1, 2, 3
CANARY = "canary-71d0"
QUICK = HostLimits(health_seconds=0.3)


async def report(client):
    return (await client.adapter.CheckHealth(pb2.CheckHealthRequest())).report


def by_name(found):
    return {check.name: (check.status, check.reason) for check in found.checks}


async def well():
    pass


def failing(error):
    async def look():
        raise error

    return look


async def test_a_report_speaks_of_all_the_contract_names():
    _, context = steered(three)
    async with context as client:
        found = await report(client)
        assert [check.name for check in found.checks] == [
            "dependency",
            "capacity",
            "configuration",
            "provider",
            "storage",
        ]
        assert set(by_name(found)) == set(NAMES)
        assert found.status == HEALTHY
        assert by_name(found)["dependency"] == (HEALTHY, "")
        # What nobody looks at is not said to be well.
        assert by_name(found)["provider"] == (UNKNOWN, "The adapter has no check of this.")
        assert found.capacity.limit > 0


async def test_a_hanging_check_is_cut_off_and_said_so_and_hides_no_other():
    cancelled = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    adapter, context = steered(three, limits=QUICK)
    adapter.checks = [
        Probe("provider", hang),
        Probe("storage", well),
        Probe("configuration", failing(errors.ConfigurationError("No region is set.", diagnostic=CANARY))),
        Probe("quota", failing(Impaired("Nearly used up."))),
        Probe("other", failing(RuntimeError(CANARY))),
    ]
    async with context as client:
        found = await report(client)
        assert by_name(found) == {
            "provider": (UNHEALTHY, "The check did not end in time and was cut off."),
            "storage": (HEALTHY, ""),
            "configuration": (UNHEALTHY, "No region is set."),
            "quota": (DEGRADED, "Nearly used up."),
            "other": (UNHEALTHY, "The adapter's health check failed unexpectedly."),
            "dependency": (HEALTHY, ""),
            "capacity": (HEALTHY, ""),
        }
        assert found.status == UNHEALTHY
        assert CANARY not in str(found)  # I22
        async with asyncio.timeout(60):
            await cancelled.wait()


async def test_i35_a_check_that_ignores_its_end_hangs_once_and_is_looked_at_again_when_it_is_over():
    begun, release = [], asyncio.Event()

    async def stubborn():
        begun.append(1)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    adapter, context = steered(three, limits=QUICK)
    adapter.checks = [Probe("provider", stubborn), Probe("storage", well)]
    async with context as client:
        try:
            assert by_name(await report(client))["provider"][0] == UNHEALTHY
            again = by_name(await report(client))
            assert again["provider"] == (UNHEALTHY, "An earlier check ignored its end and still hangs.")
            assert again["storage"] == (HEALTHY, "")
            assert len(begun) == 1
        finally:
            release.set()
        async with asyncio.timeout(60):
            while by_name(await report(client))["provider"][0] != HEALTHY:
                continue


async def test_an_adapter_that_hangs_as_a_whole_is_unhealthy_in_time_and_who_asks_meanwhile_shares_the_look():
    adapter, _ = steered(three)
    asked = []

    async def hang():
        asked.append(1)
        await asyncio.Event().wait()

    adapter.health = hang
    looks = HealthLooks(adapter, RuntimeRegistry(adapter, "this-process", QUICK))
    first, second = await asyncio.gather(looks.report(0.2), looks.report(0.2))
    assert by_name(first) == by_name(second)
    assert len(asked) == 1
    assert by_name(first)["adapter"] == (UNHEALTHY, "The check did not end in time and was cut off.")
    assert set(NAMES) <= set(by_name(first))
    assert first.status == UNHEALTHY


async def test_the_last_success_of_a_check_is_remembered():
    adapter, context = steered(three)
    adapter.checks = [Probe("provider", well)]
    async with context as client:
        (before,) = (check for check in (await report(client)).checks if check.name == "provider")
        assert before.HasField("last_success_at")
        adapter.checks = [Probe("provider", failing(errors.UnavailableError("Away.")))]
        (after,) = (check for check in (await report(client)).checks if check.name == "provider")
        assert (after.status, after.last_success_at) == (UNHEALTHY, before.last_success_at)
        never = next(check for check in (await report(client)).checks if check.name == "storage")
        assert not never.HasField("last_success_at")


async def test_i35_what_breaks_the_contract_in_a_check_does_not_cost_the_report():
    adapter, context = steered(three)
    bad = health_pb2.HealthCheck(name="Not A Name", reason="x" * 5000 + "\x00")
    bad.MergeFromString(b"\x10\x63")  # status 99, which an adapter of a newer contract may say
    well_known = health_pb2.HEALTH_STATUS_HEALTHY
    adapter.checks = [bad, *(health_pb2.HealthCheck(name=f"n{number}", status=well_known) for number in range(50))]
    async with context as client:
        found = await report(client)
        assert (found.checks[0].name, found.checks[0].status, len(found.checks[0].reason)) == (
            "adapter",
            UNHEALTHY,
            500,
        )
        assert len(found.checks) <= 32
        assert set(NAMES) <= set(by_name(found))


async def test_i35_checks_a_report_has_no_room_for_count_all_the_same_and_are_said_to_be_missing():
    adapter, context = steered(three)
    adapter.checks = [Probe(f"n{number}", well) for number in range(38)]
    adapter.checks += [Probe("storage", well), Probe("last", failing(Impaired("Nearly used up.")))]
    async with context as client:
        found = await report(client)
        shown = by_name(found)
        assert (found.status, len(found.checks)) == (DEGRADED, MAX_CHECKS - 2)
        assert shown["last"] == (DEGRADED, "Nearly used up.")  # the worst are shown
        assert shown["storage"] == (HEALTHY, "")  # and what every report speaks of
        assert shown["adapter"] == (DEGRADED, "The report has no room for 15 of 40 checks; 0 of those are not well.")
        adapter.checks = [Probe(f"n{number}", failing(Impaired("Slow."))) for number in range(39)]
        adapter.checks += [Probe(f"bad{number}", failing(errors.UnavailableError("Away."))) for number in range(30)]
        found = await report(client)
        # Of what is looked at nothing is lost, and that some was not looked at is said.
        said = [check.reason for check in found.checks if check.name == "adapter"]
        assert found.status == UNHEALTHY
        assert "The report has no room for 40 of 65 checks; 40 of those are not well." in said
        assert "The adapter names 69 checks; only the first 64 are looked at." in said
        assert sum(check.status == UNHEALTHY for check in found.checks) == 24


async def test_i35_checks_beyond_the_bound_are_not_looked_at_and_that_is_said():
    adapter, context = steered(three)
    looked = []

    def counting(number):
        async def look():
            looked.append(number)

        return look

    adapter.checks = [Probe(f"n{number}", counting(number)) for number in range(70)]
    async with context as client:
        found = await report(client)
        assert looked == list(range(64))
        said = [check.reason for check in found.checks if check.name == "adapter"]
        assert said[0] == "The adapter names 70 checks; only the first 64 are looked at."
        assert found.status == DEGRADED


async def test_a_check_that_was_left_out_while_it_was_well_has_its_last_success_all_the_same():
    adapter, context = steered(three)
    adapter.checks = [Probe(f"n{number}", well) for number in range(40)]
    async with context as client:
        assert "n39" not in by_name(await report(client))
        adapter.checks[39] = Probe("n39", failing(Impaired("Slow.")))
        shown = next(check for check in (await report(client)).checks if check.name == "n39")
        assert shown.HasField("last_success_at")


async def test_a_look_has_no_side_effects_and_shows_a_full_host():
    adapter, context = steered(forever, limits=HostLimits(max_runs=1, stop_seconds=0.2))
    async with context as client:
        await report(client)
        assert not adapter.runtimes
        await client.create()
        fence = client.fence(1, "r1")
        await client.start(fence, client.input("x")).read()
        found = await report(client)
        assert by_name(found)["capacity"] == (DEGRADED, "All 1 runs of this host are taken.")
        assert (found.status, found.capacity.active, found.capacity.limit) == (DEGRADED, 1, 1)
        runtime = adapter.runtimes[0]
        assert (runtime.initialized, runtime.restarted, runtime.cleaned) == (1, 0, 0)
        await client.cancel(fence)


async def test_a_worker_whose_check_hangs_is_not_ready_and_says_why():
    adapter, context = steered(three, worker=True, limits=QUICK)

    async def hang():
        await asyncio.Event().wait()

    adapter.checks = [Probe("provider", hang)]
    async with context as client:
        ready = await client.sandbox.GetReadiness(worker_service_pb2.GetReadinessRequest())
        assert not ready.ready
        assert ready.reason == "The check did not end in time and was cut off."


def wanted(name, version_range=""):
    return descriptor_pb2.DependencyRequirement(name=name, version_range=version_range)


def test_dependencies_are_looked_up_where_they_are_installed():
    assert dependency_problem([wanted("grpcio"), wanted("protobuf", ">=1.0")]) == ""
    missing = "The package no-such-package is not installed: install it, or the extra of the adapter that brings it."
    assert dependency_problem([wanted("no-such-package")]) == missing
    assert "the adapter needs >=999" in dependency_problem([wanted("grpcio", ">=999")])


@pytest.mark.parametrize(
    ("version", "version_range", "expected"),
    [
        ("1.4.2", ">=1.4, <2", True),
        ("2.0", ">=1.4,<2", False),
        ("1.4", "==1.4.0", True),
        ("1.4.9", "==1.4.*", True),
        ("1.5", "==1.4.*", False),
        ("1.9", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.4.5", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.4.1", "!=1.4.1", False),
        ("1.4.1rc1", ">1.4", True),
        ("1.4", ">1.4", False),
        ("1.4", "<=1.4", True),
        ("1.4", "^1.2 || 2.x", True),  # another ecosystem's notation is not compared
        ("unknown", ">=1", True),
        ("1.4", "", True),
    ],
)
def test_versions_are_compared_by_number(version, version_range, expected):
    assert fits(version, version_range) is expected
