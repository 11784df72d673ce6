"""Background work: supervised, bounded, ended with its service."""

import asyncio
import json

import pytest

from services.common.tasks import BackgroundTasks
from tests.common.conftest import service_logs

CANARY = "canary-51"


async def crash() -> None:
    raise RuntimeError(CANARY)


async def test_a_failure_is_logged_and_does_not_spread(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = BackgroundTasks()
    with service_logs():
        assert await tasks.spawn("sweep", crash()) is None
    await tasks.close()
    entry = json.loads(capsys.readouterr().err)
    assert (entry["event"], entry["task"], entry["error"]["type"]) == (
        "background_task_failed",
        "sweep",
        "builtins.RuntimeError",
    )
    assert CANARY not in json.dumps(entry)


async def test_a_repeated_turn_goes_on_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = BackgroundTasks()
    turns = 0
    third = asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            third.set()
        await crash()

    with service_logs():
        tasks.every("turn", 0, turn)
        await third.wait()
        await tasks.close()
    assert capsys.readouterr().err.count("background_turn_failed") >= 2


async def test_close_waits_for_the_end_of_every_task() -> None:
    tasks = BackgroundTasks()
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    tasks.spawn("work", work())
    await started.wait()
    await tasks.close()
    assert cleaned.is_set()
    assert len(tasks) == 0


async def test_i35_tasks_are_bounded_and_none_starts_after_close() -> None:
    tasks = BackgroundTasks(max_tasks=1)
    tasks.spawn("first", asyncio.Event().wait())
    with pytest.raises(RuntimeError, match="more than 1 background tasks"):
        tasks.spawn("second", crash())
    await tasks.close()
    with pytest.raises(RuntimeError, match="stopping"):
        tasks.spawn("third", crash())
