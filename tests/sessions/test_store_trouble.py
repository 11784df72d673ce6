"""The store is away for a while (I34)."""

import sqlite3
from contextlib import closing

from services.common.errors import Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import EXISTING, GRANTED, refused


async def test_i34_a_locked_store_is_a_retryable_error_and_recovery_needs_no_restart(start: Start) -> None:
    client = await start()
    await client.granted("r0", "c0")
    with closing(sqlite3.connect(client.sessions.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        error = await refused(client.reserve("r1"), Reason.STORE_UNAVAILABLE)
        assert error.retryable
        assert error.retry_after
        assert str(client.sessions.folder) not in error.message
        # Reading goes on, and what needs no write is answered.
        assert (await client.reserve("r9", "c0", key="key-r0")).outcome == EXISTING
        other.execute("ROLLBACK")
    assert (await client.reserve("r1")).outcome == GRANTED
