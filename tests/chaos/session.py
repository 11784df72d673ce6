"""A mesh made for a campaign: its folder, its small disk, its adapter with a journal, its replicas; ended and cleared up after it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.mesh.layout import layout_of
from tests.chaos.adapter import JOURNAL
from tests.chaos.campaign import Asked, Campaign, Say
from tests.chaos.disk import SmallDisk
from tests.chaos.faults import Faults
from tests.chaos.mesh import ChaosMesh
from tests.chaos.plan import Kind, Possible
from tests.chaos.report import Result
from tests.chaos.sockets import can_cut
from tests.chaos.store_server import StoreServer, store_server
from tests.support.mesh import RunningMesh, running_mesh

OPERATOR_FILE: Final = """\
version: 1
adapters:
  - harness_id: reference
    address: {address}
    embedded_module: tests.chaos.adapter
    profiles:
      - id: default
        display_name: Adapter host
        description: Runs in the adapter host and writes down every start.
        placement: provider_managed
"""


@dataclass(frozen=True, slots=True)
class Means:
    """What a mesh is made with. `replicas` of runs, sessions, catalog and gateway; `store` is `sqlite` or `mongodb`."""

    folder: Path
    ttl: float
    replicas: int
    store: str = "sqlite"


async def run_campaign(asked: Asked, means: Means, say: Say) -> Result:
    """A mesh, a campaign on it, and the mesh's end."""
    means.folder.mkdir(parents=True, exist_ok=True)
    journal, kept = means.folder / "starts.jsonl", means.folder / "kept-store"
    journal.touch()
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(_small_disk(means.folder / "mesh" / "store", kept))
        server = None
        if means.store == "mongodb":
            named = os.environ.get("MONGO_TEST_URI", "")
            server = await stack.enter_async_context(store_server(means.folder / "mesh" / "store", named))
        mesh = stack.enter_context(mesh_of(journal, means, server))
        chaos_mesh = ChaosMesh(mesh, server)
        left_out, possible = _possible(disk, server)
        faults = Faults(chaos_mesh, means.ttl, disk if isinstance(disk, SmallDisk) else None)
        result = await Campaign(asked, chaos_mesh, faults, possible, journal, say).run()
        result.left_out += left_out
        if not result.violations:
            kept.touch()  # there is nothing to be looked into
        return result


def _possible(disk: SmallDisk | str, server: StoreServer | None) -> tuple[list[str], Possible]:
    elsewhere = server is not None and not server.restarts
    reasons = {
        Kind.CUT: can_cut(),
        Kind.FULL: disk
        if isinstance(disk, str)
        else "the database is on a server that is not ours"
        if elsewhere
        else "",
    }
    left_out = [f"{kind.value}: {reason}" for kind, reason in reasons.items() if reason]
    if elsewhere:
        left_out.append("kill and stop of the store: the server is not ours")
    # Only a file can be locked by another process; a server is killed and stopped instead.
    kinds = frozenset(kind for kind in Kind if not reasons.get(kind) and not (server and kind is Kind.LOCK))
    return left_out, Possible(kinds, store_process=server is not None and server.restarts)


@contextmanager
def _small_disk(folder: Path, kept: Path) -> Generator[SmallDisk | str]:
    """What is on it is copied to `kept` before it goes, unless there is such a file."""
    disk = SmallDisk.mount(folder)
    try:
        yield disk
    finally:
        if isinstance(disk, SmallDisk):
            try:
                if not kept.exists():
                    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.sock"))
            finally:
                disk.unmount()


@contextmanager
def mesh_of(journal: Path, means: Means, server: StoreServer | None) -> Generator[RunningMesh]:
    """A mesh whose adapter writes every start into the journal."""
    data_dir, operator_file = means.folder / "mesh", means.folder / "harness.yaml"
    operator_file.write_text(OPERATOR_FILE.format(address=layout_of(data_dir).socket("adapter-reference")), "utf-8")
    environment = {JOURNAL: str(journal), "HARNESS_LEASE_TTL_SECONDS": f"{means.ttl:g}"}
    if server is not None:
        environment["HARNESS_STORE_URL"] = server.url
    replicas = ",".join(f"{service}={means.replicas}" for service in ("runs", "sessions", "catalog", "gateway"))
    with running_mesh(data_dir, ["--config", str(operator_file), "--replicas", replicas], environment) as mesh:
        try:
            yield mesh
        finally:
            for handle in mesh.handles():  # a process that a failed campaign left stopped could not end by itself
                handle.kill(signal.SIGCONT)
                handle.close()
