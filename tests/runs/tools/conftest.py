"""A broker of its own for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.runs.tools.stand import Stand, make_stand


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """One broker; a test may add replicas."""
    # Short, for paths of sockets are.
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    try:
        async with AsyncExitStack() as resources:
            yield await make_stand(folder, resources)
    finally:
        shutil.rmtree(folder)
