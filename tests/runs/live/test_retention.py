"""What is left of a run when its retention is over, over real processes (run protocol, Retention)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest

from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.mesh import Client, Mesh

PATIENCE = 90.0
RETENTION_SECONDS = 8
MESSAGE = "something a person wrote"


@pytest.fixture
def forgetful() -> Iterator[Mesh]:
    mesh = Mesh(settings={"HARNESS_RETENTION_SECONDS": str(RETENTION_SECONDS)}).start()
    yield mesh
    mesh.close()


async def test_i7_a_cursor_into_a_run_that_was_trimmed_is_expired_and_later_the_run_is_gone(
    forgetful: Mesh, clients: Callable[..., Client]
) -> None:
    caller = clients(forgetful)
    agent = await caller.agent()
    for conversation in ("first", "second", "third"):
        run = await caller.start(agent, MESSAGE, conversation)
        last = len(await caller.events(run.run_id))
        try:
            await look_at_what_is_left(caller, run.run_id, last)
            break
        except HarnessError as error:
            # A machine that stood still for a whole retention: the record is gone as well, and nothing was seen of what this is about.
            if error.reason is not Reason.NOT_FOUND:
                raise
    else:
        pytest.fail("the record of a trimmed run was never there")
    async with asyncio.timeout(PATIENCE):
        while written(forgetful, MESSAGE):  # noqa: ASYNC110 - nothing signals that its input went right after its events
            await asyncio.sleep(0.02)
    assert await refusal(lambda: caller.get(run.run_id)) is Reason.NOT_FOUND


async def look_at_what_is_left(caller: Client, run_id: str, last: int) -> None:
    """Of a run of which only the bare record is there."""
    await expired(lambda: caller.page(run_id, after=0))
    for cursor in (0, 1, last - 1):
        await expired(lambda cursor=cursor: caller.events(run_id, cursor))
    assert await caller.events(run_id, last) == []
    assert (await caller.get(run_id)).last_sequence == last


async def expired(ask: Callable[[], Awaitable[object]]) -> None:
    """Raises what was said instead of `cursor_expired`."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await ask()
            except HarnessError as error:
                if error.reason is Reason.CURSOR_EXPIRED:
                    return
                raise
            await asyncio.sleep(0.05)


async def test_a_decision_on_a_run_that_was_trimmed_starts_nothing_without_its_context(
    forgetful: Mesh, clients: Callable[..., Client]
) -> None:
    caller = clients(forgetful)
    agent = await caller.agent()
    script = {"scripts": [[{"interrupt": {"form": [{"name": "city"}]}}], [{"text": "on"}]]}
    run = await caller.start(agent, script, "c", context="what the answer needs")
    await caller.ended(run.run_id)
    assert await refusal(lambda: caller.page(run.run_id, after=0)) is Reason.CURSOR_EXPIRED
    with pytest.raises(HarnessError) as refused:
        await caller.resume(run.run_id, "interrupt-1", form={"city": "Rome"})
    assert (refused.value.reason, refused.value.retryable) == (Reason.HARNESS_SESSION_CONFLICT, False)
    state = await caller.interrupt_state(agent, "c")
    assert state is not None, "nothing was decided"
    on = await caller.start(agent, "hello", "c", on_conflict=binding_pb2.CONFLICT_POLICY_INTERRUPT)
    await caller.ended(on.run_id)


async def refusal(ask: Callable[[], Awaitable[object]]) -> Reason:
    """Why it is refused, as soon as it is: nothing signals that a retention is over."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await ask()
            except HarnessError as error:
                return error.reason
            await asyncio.sleep(0.05)


def written(mesh: Mesh, what: str) -> bool:
    """Whether a text stands anywhere in the records of the runs or in the log."""
    with closing(sqlite3.connect(mesh.folder / "runs.sqlite3", timeout=30)) as store:
        inputs = store.execute('SELECT blob FROM "blobs_runs"').fetchall()
        events = store.execute("SELECT events FROM segments").fetchall()
    return any(what.encode() in bytes(row[0]) for row in (*inputs, *events))
