"""How the sockets of facades get into a strict sandbox."""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import Reason
from services.common.logs import get_logger
from services.common.sandbox_cause import SandboxCause, caused
from services.sandbox.backends.local.command import INSIDE

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FacadeMounts:
    """What is let in (name below /run/harness to what outside), and the addresses that result."""

    sources: dict[str, Path]
    addresses: dict[str, str]


def facade_mounts(facades: Mapping[str, str], *, strict: bool) -> FacadeMounts:
    """The mounts for these facade addresses. `HarnessError` for a facade that a strict sandbox could not reach."""
    if not strict:
        return FacadeMounts({}, dict(facades))
    sources: dict[str, Path] = {}
    addresses: dict[str, str] = {}
    sockets = {Path(address.removeprefix("unix:")) for address in facades.values()}
    for audience, address in facades.items():
        path = Path(address.removeprefix("unix:"))
        if not address.startswith("unix:/"):
            raise caused(
                SandboxCause.NO_FACADE,
                f"The {audience} facade listens on a network address, and a strict sandbox has no network: give it a unix socket.",
                reason=Reason.CONFIGURATION_INVALID,
            )
        if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
            raise caused(SandboxCause.NO_FACADE, f"The {audience} facade does not listen at the moment.")
        if set(path.parent.iterdir()) <= sockets and path.parent.stat().st_mode & stat.S_IXOTH:
            # The folder, so that a facade that restarts, and thus makes a new socket, is found by sandboxes that live on.
            sources[audience] = path.parent
            addresses[audience] = f"unix:{INSIDE}/{audience}/{path.name}"
        else:
            # Never a folder with anything but facades in it (I28); one that others may not enter would be useless inside.
            _log.warning("facade_socket_let_in_alone", audience=audience, consequence="lost when the facade restarts")
            sources[f"{audience}.sock"] = path
            addresses[audience] = f"unix:{INSIDE}/{audience}.sock"
    return FacadeMounts(sources, addresses)
