"""What starts the program in the SDK's place: an environment made from nothing, and an end with its parent.

The SDK gives the program the whole environment of its own process, and nothing turns that off. So the SDK starts this file, as a script of its own, and
it becomes the program: with the variables that are named, in a session of its own, killed by the kernel when the adapter's process dies. Runs with the
standard library alone, in a fresh interpreter; nothing imports it.
"""

import ctypes
import os
import signal
import sys

NAMES, PROGRAM, PID_FILE, PARENT = (
    "HARNESS_CLAUDE_NAMES",
    "HARNESS_CLAUDE_PROGRAM",
    "HARNESS_CLAUDE_PID_FILE",
    "HARNESS_CLAUDE_PARENT",
)
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Becomes the program."""
    environment = {name: os.environ[name] for name in os.environ[NAMES].split(",") if name in os.environ}
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ[PARENT]):
        # The parent died before the call took effect: no signal will come for that.
        sys.exit(1)
    with open(os.environ[PID_FILE], "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    program = os.environ[PROGRAM]
    os.execve(program, [program, *sys.argv[1:]], environment)  # noqa: S606 - becoming the program is its purpose


if __name__ == "__main__":
    main()
