"""Adapters are certified side by side, whatever others on the machine do (I23)."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from adapters.sdk.testing import connected
from tests.adapters.processes import AdapterProcess
from tests.conformance.conftest import ROOT, certify

REPORTS = ROOT / "build" / "certification"
pytestmark = pytest.mark.timeout(600)


async def test_i23_two_are_certified_while_a_third_floods_and_a_fourth_hangs(start, folder: Path):
    first, flooding, hanging = await start(), await start(), await start()
    second = await AdapterProcess(folder, "adapters.betterproto", name="second").start()
    hanging.process.send_signal(signal.SIGSTOP)
    flooded = asyncio.Event()

    async def flood() -> int:
        """Turns of many events, one after the other, until it is told to end; how many there were."""
        turns = 0
        async with connected(flooding.address) as client:
            while not flooded.is_set():
                drafts = await client.turn(json.dumps({"n": 2_000, "size": 64}))
                assert len(drafts) == 2_001
                turns += 1
        return turns

    work = asyncio.create_task(flood())
    try:
        # Their reports stay, beside those of the adapters in other languages.
        made = await asyncio.gather(
            certify("--target", first.address, "--json", "--report", str(REPORTS / "reference")),
            certify("--target", second.address, "--json", "--report", str(REPORTS / "reference_betterproto")),
        )
        refused = await certify("--target", hanging.address)
    finally:
        flooded.set()
        hanging.process.send_signal(signal.SIGCONT)
        await second.stop()
    assert [one.document["verdict"] for one in made] == ["certified", "certified"]
    assert [one.document["adapter"]["harness_id"] for one in made] == ["reference", "reference_betterproto"]
    assert await work > 0
    # The one that hangs is said to be away, and nobody waits for it for ever.
    assert refused.code != 0
    assert refused.err.strip()
