"""One provider, one control plane and one adapter host for each test, gone with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from adapters.sdk.serve import serve_adapter
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from tests.adapters.claude.model import serving
from tests.adapters.claude.rig import KEY, Rig


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    (folder / "key").write_text(f"{KEY}\n")
    canaries = Canaries()
    server = await serve_adapter(ClaudeAdapter, listen=f"unix:{folder / 'host.sock'}")
    async with serving() as model, Facades(canaries, server.address) as facades:
        made = Rig(model=model, folder=folder, facades=facades, canaries=canaries, server=server)
        try:
            yield made
        finally:
            await made.close()
