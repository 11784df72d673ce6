"""A sweep that deletes no more of a run's calls at a time than it may: the run stays until they are gone (I35)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.common.store import open_record_store
from services.runs.log import open_segment_log
from services.runs.run import Status
from services.runs.sweep import Sweep
from services.runs.tools import store
from services.runs.tools.record import CallRecord, State, mark_of
from tests.runs.tools.stand import BINDING, EPOCH, Stand


async def test_i35_a_run_stays_while_calls_of_it_are_left(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    records = await open_record_store(f"sqlite://{stand.folder}/log.sqlite3", [])
    stand.resources.push_async_callback(records.close)
    engine = SimpleNamespace(
        store=stand.runs,
        calls=stand.calls,
        log=await open_segment_log(records),
        settings=SimpleNamespace(lease_ttl_seconds=1.0, retention_seconds=1_000),
        now=lambda: 5_000,
    )
    none = cast(Any, None)  # a trim asks nobody else
    sweep = Sweep(cast(Any, engine), none, none, none, none)
    monkeypatch.setattr(store, "PAGE", 1)
    monkeypatch.setattr(store, "FORGET_PAGES", 2)
    run = await stand.run(
        status=Status.COMPLETED, ended_at=1, expires_at=4_000, tool_calls=tuple(mark_of(f"call-{n}") for n in range(3))
    )
    for number in range(3):
        made = CallRecord(
            binding_id=BINDING,
            epoch=EPOCH,
            tool_call_id=f"call-{number}",
            run_id=run.run_id,
            tool_id="echo",
            digest="d",
            state=State.DONE,
            created_at=1,
            outcome="success",
        )
        assert await stand.calls.insert(made)

    async def left() -> int:
        return len([number for number in range(3) if await stand.record(f"call-{number}")])

    await sweep.trim()
    assert await left() == 1
    assert await stand.again(run) == run  # untouched, and due again
    await sweep.trim()
    assert await left() == 0
    kept = await stand.again(run)
    assert (kept.trimmed, kept.expires_at) == (True, 5_000 + 1_000_000)  # its bare record, as long again
    engine.now = lambda: 2_000_000
    await sweep.trim()
    assert await stand.runs.get(run.run_id) is None
