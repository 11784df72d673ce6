"""A process that writes until it is killed, and says on its output what was acknowledged: one `key rev` a line."""

from __future__ import annotations

import asyncio
import os
import sys

from services.common.store import Collection, Index, RecordStore, open_record_store

BY_COUNT = Index("by_count", ("lane", "count"), unique=True)
COUNTERS = Collection("counters", (BY_COUNT,), blobs=True)
FILL = "x" * 2000


async def lane(store: RecordStore, name: str) -> None:
    """Insert a counter with a blob, raise it three times, go on to the next."""
    number = 0
    while True:
        key = f"{name}-{number}"
        for rev in range(1, 5):
            document = {"lane": name, "count": number * 4 + rev, "fill": FILL, "counted": rev}
            if rev == 1:
                await store.insert(COUNTERS, key, document, key.encode() * 100)
            elif not await store.compare_and_set(COUNTERS, key, rev - 1, document):
                raise AssertionError(f"{key} lost revision {rev - 1}")
            os.write(1, f"{key} {rev}\n".encode())
        number += 1


async def main(url: str) -> None:
    store = await open_record_store(url, [COUNTERS])
    await asyncio.gather(*(lane(store, f"lane{number}") for number in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
