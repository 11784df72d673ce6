"""A gateway whose files are kept by a real sessions process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.gateway.conftest import Running, run_gateway, toy_mesh
from tests.gateway.toy_mesh import TOKEN
from tests.sessions.processes import Sessions


@asynccontextmanager
async def kept_by(sessions_settings: dict[str, str], **settings: str) -> AsyncGenerator[tuple[Running, Sessions]]:
    """A gateway in front of a sessions process of its own."""
    with TemporaryDirectory(prefix="gw") as folder:
        sessions = Sessions(Path(folder), settings={"HARNESS_SERVICE_TOKENS": TOKEN, **sessions_settings})
        await sessions.start()
        try:
            async with (
                toy_mesh() as mesh,
                run_gateway(mesh, HARNESS_SESSIONS_ADDRESS=sessions.address, **settings) as gateway,
            ):
                yield gateway, sessions
        finally:
            await sessions.stop()
