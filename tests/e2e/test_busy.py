"""Conversations in which several runs want their turn at once: order, bounds, superseding, over two replicas and every death (I5, I6, I9, I35)."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Generator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.chaos.judge import violations_of
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import assert_whole, conversation, save_agent, start_body
from tests.e2e.watching import SUBJECT, Audience, Pair, audience, pair_on
from tests.support.mesh import PATIENCE_SECONDS, RunningMesh, poll_until, running_mesh
from tests.support.processes import ProcessHandle

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
SHORT = {"n": 5, "rate": 20}
MAX_WAITING = 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    with running_mesh(tmp_path_factory.mktemp("busy")) as mesh:
        async with pair_on(mesh) as pair:
            yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def stored(pair: Pair) -> AsyncIterator[StoredMesh]:
    """The stores, in which nothing may be left undone or broken by the end of a test."""
    stored = StoredMesh(pair.mesh.data_dir)
    yield stored
    await asyncio.to_thread(poll_until, lambda: not stored.unsettled(), "everything to come to its end")
    assert violations_of(stored, Recorded({})) == []


class Talk:
    """One conversation with an agent of the faulty profile, asked at either gateway in turn."""

    def __init__(self, pair: Pair, client: httpx.AsyncClient, agent: str) -> None:
        self.pair = pair
        self.client = client
        self.agent = agent
        self.id = conversation()
        self._urls = itertools.cycle(pair.urls)

    async def ask(self, message: object, on_conflict: str = "reject", **more: Any) -> httpx.Response:
        """The answer to a start, which is repeated as it is while its gateway or a service behind that is being started again."""
        body = start_body(
            self.agent,
            message,  # pyright: ignore[reportArgumentType] - a dict
            self.id,
            on_conflict=on_conflict,
            **{"client_request_id": uuid.uuid4().hex, **more},
        )
        return await self._answered("POST", "/api/v1/runs", json=body)

    async def _answered(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    answer = await self.client.request(method, next(self._urls) + path, **more)
                except httpx.TransportError as error:
                    said = repr(error)
                else:
                    said = answer.text
                    if answer.status_code != 503 or answer.json()["code"] == "capacity":
                        return answer
                print(f"again: {said}")  # noqa: T201 - shown when the test fails
                await asyncio.sleep(0.1)

    async def start(self, message: object, on_conflict: str = "reject", **more: Any) -> str:
        """The run of a start that is accepted."""
        answer = await self.ask(message, on_conflict, **more)
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["data"]["run_id"]
        return run_id

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """The run after an answered cancel."""
        answer = await self._answered("DELETE", f"/api/v1/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()["data"]
        return run

    async def clear(self) -> httpx.Response:
        """The answer to a clear."""
        where = {"agent_id": self.agent, "conversation_id": self.id}
        return await self._answered("POST", "/api/v1/sessions/clear", json=where, timeout=120)


@pytest_asyncio.fixture(loop_scope="module")
async def talk(pair: Pair) -> AsyncIterator[tuple[Talk, Audience]]:
    def agent() -> str:
        with pair.mesh.client(SUBJECT) as client:
            return save_agent(client, profile="faults")

    async with audience() as (client, watching):
        yield Talk(pair, client, await asyncio.to_thread(agent)), watching


def in_order_of_execution(stored: StoredMesh, run_ids: list[str]) -> list[str]:
    """The runs that got their turn, as they began."""
    turns = {run["run_id"]: run["turn"] for run in stored.runs()}
    begun = [run_id for run_id in run_ids if turns[run_id]]
    assert sorted(begun, key=lambda run_id: stored.log(run_id)[0].at) == sorted(begun, key=turns.__getitem__)
    return sorted(begun, key=turns.__getitem__)


async def test_i6_who_waits_is_executed_in_order_over_the_death_of_every_process(
    pair: Pair, stored: StoredMesh, talk: tuple[Talk, Audience]
) -> None:
    said, watching = talk
    occupant = await said.start(HANG)
    waiting = [await said.start(SHORT, "enqueue", client_request_id=f"turn-{number}") for number in range(8)]
    watchers = [watching.add(run_id, pair.urls) for run_id in (occupant, *waiting)]
    # Each may be cancelled while it waits, wherever; the others keep their order.
    for run_id in (waiting[2], waiting[5]):
        run = await said.cancel(run_id)
        assert (run["status"], run["last_sequence"]) == ("cancelled", 2)
    await watchers[0].has(2)
    await asyncio.to_thread(kill_everything, pair)
    ended = {subscriber.run_id: subscriber.frames for subscriber in await watching.all_ended()}
    for run_id, frames in ended.items():
        assert_whole(frames)
        cancelled = run_id in (waiting[2], waiting[5])
        wanted = "run.failed" if run_id == occupant else "run.cancelled" if cancelled else "run.completed"
        assert frames[-1].event_type == wanted, frames[-1].data
    left = [run_id for run_id in waiting if run_id not in (waiting[2], waiting[5])]
    assert in_order_of_execution(stored, [occupant, *waiting]) == [occupant, *left]
    # The same requests are the same runs, also now.
    for number, run_id in enumerate(waiting):
        assert await said.start(SHORT, "enqueue", client_request_id=f"turn-{number}") == run_id


def kill_everything(pair: Pair) -> None:
    """kill -9 of every process of both replicas, and of the provider's host, at once; returns when those of the mesh are back."""
    services = ("gateway", "runs", "sessions", "catalog", "sandbox", "adapter-reference", "bus")
    pids = [pair.mesh.pid(service) for service in services] + [target.find() for target in pair.targets]
    handles = [ProcessHandle(pid) for pid in pids if pid]
    for handle in handles:
        handle.kill()
    for handle in handles:
        assert handle.wait_gone()
        handle.close()
    for service in services:
        poll_until(lambda service=service: pair.mesh.pid(service) not in (0, *pids), f"{service} to be back")


async def test_i35_the_line_is_bounded_and_a_clear_ends_all_of_it(
    pair: Pair, stored: StoredMesh, talk: tuple[Talk, Audience]
) -> None:
    said, watching = talk
    runs = [await said.start(HANG)]
    runs += [await said.start(SHORT, "enqueue") for _ in range(MAX_WAITING)]
    for policy in ("enqueue", "interrupt"):
        refused = await said.ask(SHORT, policy)
        assert (refused.status_code, refused.json()["code"]) == (503, "capacity"), refused.text
        assert int(refused.headers["retry-after"]) >= 1
    conflict = await said.ask(SHORT)
    assert (conflict.status_code, conflict.json()["code"]) == (409, "harness_session_conflict")
    # Room for one more, as soon as one of them has gone.
    await said.cancel(runs.pop())
    runs.append(await said.start(SHORT, "enqueue"))
    for run_id in runs[:3] + runs[-2:]:
        watching.add(run_id, pair.urls)
    cleared = await said.clear()
    assert cleared.json()["data"]["next_epoch"] == 2, cleared.text
    for subscriber in await watching.all_ended():
        assert_whole(subscriber.frames)
        assert subscriber.frames[-1].data["reason"] == "session_cleared"
    by_id = {run["run_id"]: run for run in stored.runs()}
    assert {by_id[run_id]["status"] for run_id in runs} == {"cancelled"}
    after = watching.add(await said.start("hello"), pair.urls)
    await watching.all_ended()
    assert after.frames[-1].event_type == "run.completed"


async def test_i6_an_interrupt_goes_before_those_who_wait_and_supersedes_its_like(
    pair: Pair, stored: StoredMesh, talk: tuple[Talk, Audience]
) -> None:
    said, watching = talk
    occupant = await said.start(HANG)
    waiting = [await said.start(SHORT, "enqueue") for _ in range(2)]
    first = await said.start(HANG, "interrupt")
    watchers = {run_id: watching.add(run_id, pair.urls) for run_id in (occupant, *waiting, first)}
    await watchers[first].has(2)
    second = await said.start(SHORT, "interrupt")
    watchers[second] = watching.add(second, pair.urls)
    await watching.all_ended()
    for run_id in (occupant, first):
        last = watchers[run_id].frames[-1]
        assert (last.event_type, last.data["reason"]) == ("run.cancelled", "superseded")
    order = [occupant, first, second, *waiting]
    assert in_order_of_execution(stored, order) == order
    assert {watchers[run_id].frames[-1].event_type for run_id in (second, *waiting)} == {"run.completed"}


@pytest.mark.parametrize("seed", [1, 2])
async def test_i6_exactly_one_at_a_time_whatever_is_raced(
    pair: Pair, stored: StoredMesh, talk: tuple[Talk, Audience], seed: int
) -> None:
    said, watching = talk
    dice = random.Random(seed)
    accepted: list[str] = []

    async def one() -> None:
        for _ in range(5):
            answer = await said.ask(SHORT, dice.choice(("reject", "enqueue", "enqueue", "interrupt")))
            assert answer.status_code in (202, 409, 503), answer.text
            if answer.status_code == 202:
                accepted.append(answer.json()["data"]["run_id"])
                watching.add(accepted[-1], pair.urls)
            if accepted and dice.random() < 0.3:
                await said.cancel(dice.choice(accepted))

    await asyncio.gather(*(one() for _ in range(8)))
    for subscriber in await watching.all_ended():
        assert_whole(subscriber.frames)
    # The fixture's checks say the rest: of all runs of a conversation, none began before the one before it had ended.
    assert len(set(accepted)) == len(accepted) == len([r for r in stored.runs() if r["conversation_id"] == said.id])


@pytest.fixture
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("impatient"), environment={"HARNESS_QUEUE_SECONDS": "2"}) as mesh:
        yield mesh


async def test_i9_who_waits_too_long_fails_with_capacity_and_nothing_else_does(impatient: RunningMesh) -> None:
    with impatient.client(SUBJECT) as sync:
        agent = save_agent(sync, profile="faults")
    async with audience() as (client, watching):
        said = Talk(Pair(impatient, (impatient.url, impatient.url), []), client, agent)
        occupant = await said.start(HANG)
        late = [await said.start(SHORT, "enqueue") for _ in range(3)]
        subscribers = [watching.add(run_id, [impatient.url]) for run_id in late]
        await watching.all_ended()
        for subscriber in subscribers:
            assert_whole(subscriber.frames)
            failed = subscriber.frames[-1].data
            assert len(subscriber.frames) == 2
            assert (failed["code"], failed["category"], failed["side_effect_status"]) == (
                "capacity",
                "capacity",
                "none",
            )
            assert (failed["retryable"], failed["retry_after_seconds"] >= 1) == (True, True)
        # The occupant is still at work, and its conversation takes the next one once it has gone.
        assert (await said.cancel(occupant))["status"] == "cancelled"
        after = watching.add(await said.start("hello"), [impatient.url])
        await watching.all_ended()
        assert after.frames[-1].event_type == "run.completed"
