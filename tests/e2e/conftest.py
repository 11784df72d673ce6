"""One mesh for the tests of a worker; those that kill parts of it wait until they are back."""

from __future__ import annotations

from collections.abc import Generator

import httpx
import pytest

from tests.support.mesh import RunningMesh, running_mesh


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


@pytest.fixture
def client(mesh: RunningMesh) -> Generator[httpx.Client]:
    with mesh.client() as client:
        yield client
