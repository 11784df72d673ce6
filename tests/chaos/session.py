"""A mesh made for a campaign: its folder, its small disk, its adapter with a journal, its replicas; ended and cleared up after it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
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
    """What a mesh is made with. `replicas` of runs, sessions, catalog and gateway."""

    folder: Path
    ttl: float
    replicas: int


async def run_campaign(asked: Asked, means: Means, say: Say) -> Result:
    """A mesh, a campaign on it, and the mesh's end."""
    means.folder.mkdir(parents=True, exist_ok=True)
    data_dir, journal = means.folder / "mesh", means.folder / "starts.jsonl"
    journal.touch()
    with ExitStack() as stack:
        kept = means.folder / "kept-store"
        disk = stack.enter_context(_small_disk(data_dir / "store", kept))
        mesh = stack.enter_context(_mesh(data_dir, journal, means))
        chaos_mesh = ChaosMesh(mesh)
        left_out, kinds = _possible(disk)
        faults = Faults(chaos_mesh, means.ttl, disk if isinstance(disk, SmallDisk) else None)
        possible = Possible(kinds, store_process=False, interrupts=False)
        campaign = Campaign(asked, chaos_mesh, faults, possible, journal, say)
        result = await campaign.run()
        result.left_out += left_out
        if not result.violations:
            kept.touch()  # there is nothing to be looked into
        return result


def _possible(disk: SmallDisk | str) -> tuple[list[str], frozenset[Kind]]:
    reasons = {Kind.CUT: can_cut(), Kind.FULL: disk if isinstance(disk, str) else ""}
    left_out = [f"{kind.value}: {reason}" for kind, reason in reasons.items() if reason]
    return left_out, frozenset(kind for kind in Kind if not reasons.get(kind))


@contextmanager
def _small_disk(folder: Path, kept: Path) -> Generator[SmallDisk | str]:
    """What is on it is copied to `kept` before it goes, unless there is such a file."""
    disk = SmallDisk.mount(folder)
    try:
        yield disk
    finally:
        if isinstance(disk, SmallDisk):
            if not kept.exists():
                shutil.copytree(folder, kept)
            disk.unmount()


@contextmanager
def _mesh(data_dir: Path, journal: Path, means: Means) -> Generator[RunningMesh]:
    operator_file = means.folder / "harness.yaml"
    operator_file.write_text(OPERATOR_FILE.format(address=layout_of(data_dir).socket("adapter-reference")), "utf-8")
    environment = {JOURNAL: str(journal), "HARNESS_LEASE_TTL_SECONDS": f"{means.ttl:g}"}
    replicas = ",".join(f"{service}={means.replicas}" for service in ("runs", "sessions", "catalog", "gateway"))
    arguments = ["--config", str(operator_file), "--replicas", replicas]
    with running_mesh(data_dir, arguments, environment) as mesh:
        try:
            yield mesh
        finally:
            for handle in mesh.handles():  # a process that a failed campaign left stopped could not end by itself
                handle.kill(signal.SIGCONT)
                handle.close()
