"""Where the mesh of this folder is, for somebody whose command looked for it elsewhere."""

from __future__ import annotations

import os

from cli.mesh.layout import default_data_dir, layout_of
from cli.mesh.state_file import read_state


def url_of_running_mesh() -> str:
    """The base URL of the mesh that runs on HARNESS_DATA_DIR or `.harness`; empty when none does, or nothing can be said."""
    state = read_state(layout_of(default_data_dir()).state_file)
    return state.url if state is not None and state.url and _lives(state.pid) else ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's, who may have started it
    return True
