"""A process that appends until it is killed, and says on its output what is durable: one `run_id index` a line."""

from __future__ import annotations

import asyncio
import os
import sys

from services.common.store import Collection, open_record_store
from services.runs.log import Appended, SegmentHeader, SegmentLog, open_segment_log


async def lane(log: SegmentLog, name: str) -> None:
    """Runs of ten segments, one after the other."""
    number = 0
    while True:
        run_id = f"{name}-{number}"
        for index in range(1, 11):
            header = SegmentHeader(run_id, index, index * 20 - 19, index * 20, 1, "nonce", {"open": []})
            if await log.append(header, f"{run_id}/{index}".encode() * 50) != Appended():
                raise AssertionError(f"{run_id}: somebody else is at {index}")
            os.write(1, f"{run_id} {index}\n".encode())
        number += 1


async def main(url: str) -> None:
    log = await open_segment_log(await open_record_store(url, [Collection("runs")]))
    await asyncio.gather(*(lane(log, f"lane{number}") for number in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
