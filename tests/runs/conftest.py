"""The mesh of the runs tests: one for those that harm nothing, one of their own for those that kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.runs.mesh import Client, Mesh


@pytest.fixture(scope="session")
def mesh() -> Iterator[Mesh]:
    """Shared by the tests of one worker process; each has its own agents, conversations and subjects."""
    started = Mesh().start()
    yield started
    started.close()


@pytest.fixture(scope="session")
def rough_mesh_processes() -> Iterator[Mesh]:
    """The processes behind `rough_mesh`."""
    started = Mesh().start()
    yield started
    started.close()


@pytest.fixture
def rough_mesh(rough_mesh_processes: Mesh) -> Mesh:
    """For tests that kill and restart: each finds everything running."""
    rough_mesh_processes.heal()
    return rough_mesh_processes


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[Client]:
    """A new subject on the shared mesh."""
    made = Client(mesh)
    yield made
    await made.close()


@pytest.fixture
async def clients() -> AsyncIterator[Callable[..., Client]]:
    """Makes clients of any mesh, and closes them."""
    made: list[Client] = []

    def make(mesh: Mesh, subject: str | None = None, replica: str = "runs") -> Client:
        made.append(Client(mesh, subject, replica))
        return made[-1]

    yield make
    for one in made:
        await one.close()
