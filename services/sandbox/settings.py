"""What the sandbox service is told (environment, prefix `HARNESS_`)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from services.common.errors import ConfigurationError
from services.common.ids import new_lease_id
from services.common.settings import MAX_UNIX_PATH_BYTES, Addresses, ServiceSettings

SOCKET_FOLDER = "s"
SOCKET_NAME = "w.sock"


class SandboxSettings(ServiceSettings):
    """Settings of `python -m services.sandbox`."""

    catalog_address: Annotated[
        Addresses,
        Field(description="Where the catalog is, which says what stands behind a profile: its replicas' addresses."),
    ]
    sandbox_dir: Annotated[
        Path | None,
        Field(
            description="Folder of the sandboxes on this machine, one process of this service per folder; `sb` in the data folder when empty."
        ),
    ] = None
    max_sandboxes: Annotated[
        int,
        Field(ge=1, le=1000, description="Live sandboxes at once; one more is refused with SANDBOX_CAPACITY (I35)."),
    ] = 64
    sandbox_start_seconds: Annotated[
        float, Field(ge=1, le=300, description="Seconds a sandbox may take from nothing to a ready worker.")
    ] = 20.0
    sandbox_bwrap: Annotated[
        str, Field(min_length=1, description="The bubblewrap program: a name on the path, or a path.")
    ] = "bwrap"
    sandbox_limits: Annotated[
        Literal["cgroup", "rlimit"],
        Field(
            description="What bounds memory and processes of a strict sandbox: `cgroup` refuses to start where control groups cannot be had; "
            "`rlimit` makes do with limits per process there."
        ),
    ] = "cgroup"
    sandbox_uid_base: Annotated[
        int,
        Field(
            ge=1000,
            le=4_000_000_000,
            description="First of the user ids that sandboxes run under when the service runs as root; nobody else may have them.",
        ),
    ] = 200_000
    sandbox_uid_count: Annotated[int, Field(ge=1, le=100_000, description="How many user ids there are.")] = 10_000
    lifeline_fd: Annotated[
        int | None,
        Field(
            ge=3,
            description="Descriptor of a pipe whose writing end the mesh's first process holds: its end is the end of every sandbox, while "
            "sandboxes outlive this service. When empty, sandboxes end with this service.",
        ),
    ] = None

    def sandbox_root(self) -> Path:
        """The folder of the sandboxes, absolute. `ConfigurationError` when a worker's socket would not fit into a socket address."""
        root = (self.sandbox_dir or self.data_dir / "sb").absolute()
        size = len(bytes(root / new_lease_id() / SOCKET_FOLDER / SOCKET_NAME))
        if size > MAX_UNIX_PATH_BYTES:
            raise ConfigurationError(
                f"HARNESS_SANDBOX_DIR: {root} is too long, a worker's socket would have {size} bytes and the system allows "
                f"{MAX_UNIX_PATH_BYTES}: choose a folder at least {size - MAX_UNIX_PATH_BYTES} bytes shorter."
            )
        return root
