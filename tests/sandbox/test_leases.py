"""Leases through the real service, with plain worker processes: they hold on every machine."""

import asyncio
import json
import os
import signal

import pytest

from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.sandbox_cause import told
from tests.sandbox.mesh import SECONDS, all_gone, descendants, exists, fence, inside, running_mesh


async def test_acquire_makes_binds_and_release_destroys() -> None:
    async with running_mesh() as mesh:
        answer = await mesh.acquire("bnd_a")
        lease = answer.lease
        assert answer.created
        assert lease.state == lease_pb2.LEASE_STATE_BOUND
        assert lease.isolation == "none"
        assert await inside(lease, "result = worker.bound.fence.binding_id") == "bnd_a"
        assert await inside(lease, "result = worker.incarnation") == lease.runtime_ref.incarnation
        again = await mesh.acquire("bnd_a")
        assert not again.created
        assert again.lease.lease_id == lease.lease_id
        assert await mesh.release("bnd_a")
        assert not await mesh.release("bnd_a")
        assert not list(mesh.root.glob("lse_*"))
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_RELEASED
        assert "sandbox_without_isolation" in mesh.log


async def test_i26_raced_acquires_of_a_binding_share_one_sandbox_and_bindings_never_do() -> None:
    async with running_mesh() as mesh:
        answers = await asyncio.gather(*(mesh.acquire(f"bnd_{number % 3}") for number in range(12)))
        leases = {answer.lease.lease_id: answer.lease.binding_id for answer in answers}
        assert sorted(leases.values()) == ["bnd_0", "bnd_1", "bnd_2"]
        assert sum(answer.created for answer in answers) == 3
        assert len({answer.lease.runtime_ref.incarnation for answer in answers}) == 3
        assert set(mesh.keepers()) == set(leases)
        for answer in answers:
            bound = await inside(answer.lease, "result = worker.bound.fence.binding_id")
            assert bound == answer.lease.binding_id


async def test_i26_two_processes_of_the_service_race_for_a_binding_and_one_makes_it() -> None:
    async with running_mesh() as one, running_mesh(start=False) as two:
        two.settings["HARNESS_STORE_URL"] = f"sqlite://{one.folder}/data/sandbox.sqlite3"
        await two.start()
        answers = await asyncio.gather(*(mesh.acquire("bnd_a") for mesh in (one, two, one, two)))
        assert len({answer.lease.lease_id for answer in answers}) == 1
        assert sum(answer.created for answer in answers) == 1
        assert len(one.keepers()) + len(two.keepers()) == 1
        # I27: replaced through the other process, it is cut off where it lives.
        maker, other = (one, two) if one.keepers() else (two, one)
        keeper = os.pidfd_open(next(iter(maker.keepers().values())))
        await other.acquire("bnd_a", 2)
        await all_gone([keeper])


async def test_i27_a_newer_generation_destroys_the_old_worker_first_and_an_older_one_is_refused() -> None:
    async with running_mesh() as mesh:
        old = (await mesh.acquire("bnd_a")).lease
        (keeper,) = mesh.keepers().values()
        processes = descendants(keeper)
        with pytest.raises(HarnessError) as refused:
            await mesh.acquire("bnd_a", 2, reuse_only=True)
        assert refused.value.reason == Reason.NOT_FOUND
        new = (await mesh.acquire("bnd_a", 2)).lease
        # They were dead before the new worker started.
        assert not processes & set(await inside(new, "result = worker.seen"))
        assert new.runtime_ref != old.runtime_ref
        with pytest.raises(HarnessError) as stale:
            await mesh.acquire("bnd_a", 1)
        assert stale.value.reason == Reason.STALE_LEASE
        assert not await mesh.release("bnd_a", 1)
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_BOUND


@pytest.mark.parametrize("victim", ["worker", "keeper"])
async def test_a_killed_worker_is_noticed_and_only_the_next_generation_replaces_it(victim: str) -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        pid = await inside(lease, "result = os.getpid()")
        worker = os.pidfd_open(pid)
        os.kill(pid if victim == "worker" else mesh.keepers()[lease.lease_id], signal.SIGKILL)
        lost = await mesh.in_state("bnd_a", lease_pb2.LEASE_STATE_LOST)
        await all_gone([worker])
        assert "SANDBOX_EVICTED" in lost.reason
        with pytest.raises(HarnessError) as ended:
            await mesh.acquire("bnd_a")
        assert ended.value.reason == Reason.SANDBOX_EVICTED
        with pytest.raises(HarnessError) as gone:
            await mesh.acquire("bnd_a", reuse_only=True)
        assert gone.value.reason == Reason.NOT_FOUND
        with pytest.raises(HarnessError) as renewed:
            await mesh.call("RenewSandbox", sandbox_service_pb2.RenewSandboxRequest(fence=fence("bnd_a")))
        assert renewed.value.reason == Reason.SANDBOX_EVICTED
        assert (await mesh.acquire("bnd_a", 2)).created


async def test_a_dead_worker_is_not_reused_although_its_keeper_has_not_noticed() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        pid = await inside(lease, "result = os.getpid()")
        keeper = mesh.keepers()[lease.lease_id]
        os.kill(keeper, signal.SIGSTOP)
        worker = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        await all_gone([worker])
        with pytest.raises(HarnessError) as gone:
            await mesh.acquire("bnd_a", reuse_only=True)
        assert gone.value.reason == Reason.NOT_FOUND
        assert (await mesh.acquire("bnd_a", 2)).created


async def test_i29_release_ends_what_the_worker_started_too() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        code = (
            "import subprocess\n"
            "result = subprocess.Popen(['/bin/sh', '-c', 'setsid sleep 600 & setsid sleep 600 & echo $! && wait'],"
            " start_new_session=True, stdout=subprocess.PIPE).stdout.readline().decode()"
        )
        runaway = int(await inside(lease, code))
        processes = [os.pidfd_open(pid) for pid in descendants(mesh.keepers()[lease.lease_id])]
        assert exists(runaway)
        await mesh.release("bnd_a")
        await all_gone(processes)
        assert not exists(runaway)


async def test_i20_what_a_worker_says_is_left_is_told_and_its_sandbox_is_destroyed_all_the_same() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        await inside(lease, "worker.left = 'A provider goes on.'")
        processes = [os.pidfd_open(pid) for pid in descendants(mesh.keepers()[lease.lease_id])]
        assert await mesh.release("bnd_a")
        await all_gone(processes)
        assert not list(mesh.root.glob("lse_*"))
        (told,) = (json.loads(line) for line in mesh.log.splitlines() if "worker_left_something" in line)
        assert (told["left"], told["lease_id"], told["binding_id"]) == ("A provider goes on.", lease.lease_id, "bnd_a")


async def test_i29_workers_outlive_a_killed_service_and_are_adopted_by_the_next() -> None:
    async with running_mesh() as mesh:
        kept = (await mesh.acquire("bnd_kept")).lease
        dead = (await mesh.acquire("bnd_dead")).lease
        dead_pid = await inside(dead, "result = os.getpid()")
        await mesh.stop(signal.SIGKILL)
        gone = os.pidfd_open(mesh.keepers()[dead.lease_id])
        os.kill(dead_pid, signal.SIGKILL)
        await all_gone([gone])
        stray = mesh.root / "lse_00000000000000000000000000"
        stray.mkdir()
        await mesh.start()
        again = await mesh.acquire("bnd_kept")
        assert not again.created
        assert again.lease.runtime_ref == kept.runtime_ref
        assert (await mesh.get("bnd_dead")).state == lease_pb2.LEASE_STATE_LOST
        assert {path.name for path in mesh.root.glob("lse_*")} == {kept.lease_id}
        os.kill(await inside(kept, "result = os.getpid()"), signal.SIGKILL)
        await mesh.in_state("bnd_kept", lease_pb2.LEASE_STATE_LOST)


async def test_i29_a_sandbox_half_made_by_a_killed_service_is_found() -> None:
    async with running_mesh() as mesh:
        mesh.catalog.profiles["none"]["worker_module"] = "tests.sandbox.stuck_worker"
        making = asyncio.create_task(mesh.acquire("bnd_a"))
        async with asyncio.timeout(SECONDS):
            while not mesh.keepers():  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)
        keeper = os.pidfd_open(next(iter(mesh.keepers().values())))
        await mesh.stop(signal.SIGKILL)
        with pytest.raises((HarnessError, asyncio.CancelledError)):
            await making
        await mesh.start()
        await all_gone([keeper])
        assert not list(mesh.root.glob("lse_*"))
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_LOST
        # No worker of the generation was ever bound, so it may still be made.
        mesh.catalog.profiles["none"]["worker_module"] = "tests.sandbox.probe_worker"
        assert (await mesh.acquire("bnd_a")).created


async def test_nothing_outlives_the_mesh_whatever_kills_it() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        processes = [os.pidfd_open(pid) for pid in descendants(mesh.keepers()[lease.lease_id])]
        await mesh.stop(signal.SIGKILL)
        mesh.cut_lifeline()
        await all_gone(processes)


async def test_without_a_lifeline_sandboxes_end_with_the_service() -> None:
    async with running_mesh(lifeline=False) as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        processes = [os.pidfd_open(pid) for pid in descendants(mesh.keepers()[lease.lease_id])]
        await mesh.stop(signal.SIGKILL)
        await all_gone(processes)
        await mesh.start()
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_LOST
        assert not list(mesh.root.glob("lse_*"))


@pytest.mark.parametrize("lifeline", [True, False])
async def test_i29_an_orderly_end_of_the_mesh_removes_what_is_left_of_its_sandboxes(lifeline: bool) -> None:
    async with running_mesh(lifeline=lifeline) as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        processes = [os.pidfd_open(pid) for pid in descendants(mesh.keepers()[lease.lease_id])]
        if lifeline:
            mesh.cut_lifeline()
        assert await mesh.stop() == 0
        await all_gone(processes)
        assert not list(mesh.root.glob("lse_*"))
        assert "sandboxes_left_to_the_next_start" not in mesh.log
        await mesh.start()
        assert (await mesh.get("bnd_a")).reason == "SANDBOX_EVICTED: the mesh ended"


async def test_an_orderly_end_of_the_service_alone_leaves_its_sandboxes_to_the_next() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        assert await mesh.stop() == 0
        assert {path.name for path in mesh.root.glob("lse_*")} == {lease.lease_id}
        await mesh.start()
        again = await mesh.acquire("bnd_a")
        assert not again.created
        assert again.lease.runtime_ref == lease.runtime_ref


async def test_i35_capacity_is_a_bound_that_says_so() -> None:
    async with running_mesh(HARNESS_MAX_SANDBOXES="2") as mesh:
        answers = await asyncio.gather(*(mesh.acquire(f"bnd_{number}") for number in range(5)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, HarnessError)]
        assert [error.reason for error in refused] == [Reason.SANDBOX_CAPACITY] * 3
        assert all(error.retryable and error.retry_after for error in refused)
        taken = next(answer.lease for answer in answers if not isinstance(answer, BaseException))
        # A replacement needs no room of its own.
        await mesh.acquire(taken.binding_id, 2)
        await mesh.release(taken.binding_id, 2)
        await mesh.acquire("bnd_9")


async def test_a_worker_of_another_harness_is_refused_and_nothing_stays() -> None:
    async with running_mesh() as mesh:
        with pytest.raises(HarnessError) as refused:
            await mesh.acquire("bnd_a", harness="other")
        assert refused.value.reason == Reason.WORKER_MISMATCH
        assert "worker_module" in refused.value.message
        assert not list(mesh.root.glob("lse_*"))


@pytest.mark.parametrize(
    ("module", "reason", "words"),
    [
        ("tests.sandbox.no_such_worker", Reason.SANDBOX_NOT_READY, "ended before it was ready"),
        ("no_such_package.worker", Reason.CONFIGURATION_INVALID, "no package no_such_package"),
        ("tests.sandbox.early_worker", Reason.SANDBOX_NOT_READY, "without listening"),
        ("tests.sandbox.stuck_worker", Reason.SANDBOX_NOT_READY, "within 1 seconds"),
    ],
)
async def test_a_worker_that_does_not_come_up_is_said_and_nothing_stays(
    module: str, reason: Reason, words: str
) -> None:
    async with running_mesh(HARNESS_SANDBOX_START_SECONDS="1") as mesh:
        mesh.catalog.profiles["none"]["worker_module"] = module
        with pytest.raises(HarnessError) as refused:
            await mesh.acquire("bnd_a")
        assert refused.value.reason == reason
        assert words in refused.value.message
        assert not list(mesh.root.glob("lse_*"))
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_LOST
        # Whoever reads the list of what ended sees why, and what a run says of it is in fixed words.
        (ended,) = (await mesh.call("ListSandboxes", sandbox_service_pb2.ListSandboxesRequest(ended=True))).leases
        assert words in ended.reason
        assert module not in (told(refused.value) or "")
        assert '"event": "sandbox_refused"' in mesh.log


async def test_live_leases_are_listed_in_pages() -> None:
    async with running_mesh() as mesh:
        for number in range(3):
            await mesh.acquire(f"bnd_{number}")
        await mesh.release("bnd_1")
        request = sandbox_service_pb2.ListSandboxesRequest(page_size=1)
        first = await mesh.call("ListSandboxes", request)
        request.page_token = first.next_page_token
        second = await mesh.call("ListSandboxes", request)
        assert [lease.binding_id for lease in (*first.leases, *second.leases)] == ["bnd_0", "bnd_2"]
        assert not second.next_page_token
        (ended,) = (await mesh.call("ListSandboxes", sandbox_service_pb2.ListSandboxesRequest(ended=True))).leases
        assert (ended.binding_id, ended.reason) == ("bnd_1", "released")
        request.page_token = "nonsense"
        with pytest.raises(HarnessError) as refused:
            await mesh.call("ListSandboxes", request)
        assert refused.value.reason == Reason.INVALID_REQUEST


async def test_an_environment_without_isolation_still_holds_nothing_of_the_mesh() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        names = await inside(lease, "result = sorted(os.environ)")
        assert set(names) <= {
            "HARNESS_DIE_WITH_PARENT", "HOME", "LANG", "LC_CTYPE", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "TMPDIR",
        }  # fmt: skip


async def test_i35_a_workers_output_is_kept_to_its_bound_and_read_on() -> None:
    async with running_mesh() as mesh:
        lease = (await mesh.acquire("bnd_a")).lease
        await inside(lease, "import sys\nprint('x' * (3 << 20), file=sys.stderr, flush=True)\nresult = 1")
        kept = (mesh.root / lease.lease_id / "worker.log").read_bytes()
        assert 1 << 20 <= len(kept) < (1 << 20) + 100
        assert kept.endswith(b"is the limit]\n")
