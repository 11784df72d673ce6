"""Runs another program that dies when the mesh does: `python -m cli.mesh.tether PROGRAM [ARGUMENT ...]`."""

from __future__ import annotations

import os
import sys

from services.common.process import die_with_parent


def main() -> None:
    """Asks the kernel for the parent's death, then becomes the program: the request outlives exec."""
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
