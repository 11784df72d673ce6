"""Collecting parts on a real store (thread state; I35)."""

from pathlib import Path

from services.common.clock import SystemClock
from services.common.store import open_record_store
from services.sessions.part_collection import PARTS_OF_A_TURN, PartCollector
from services.sessions.parts import part_ref_of
from services.sessions.store import COLLECTIONS, SessionStore


async def test_i35_one_turn_collects_all_that_is_due_however_much_it_is(tmp_path: Path) -> None:
    records = await open_record_store(f"sqlite://{tmp_path}/sessions.sqlite3", COLLECTIONS)
    store = SessionStore(records)
    for number in range(PARTS_OF_A_TURN + 1):
        run_id = f"run_{number}"
        part = {"binding_id": "bnd_closed", "run_id": run_id, "ordinal": 1, "codec": "c", "digest": "d", "size": 1}
        assert await store.insert_part(part_ref_of("bnd_closed", run_id, "k"), {**part, "check_at": 1}, b"x")  # type: ignore[arg-type]  # the keys are those of a part
    await PartCollector(store, SystemClock(), recheck_milliseconds=60_000).turn()
    assert await store.parts_of_binding("bnd_closed", 10) == []
    await records.close()
