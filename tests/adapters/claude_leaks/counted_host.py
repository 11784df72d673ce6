"""The adapter's host, which says on a signal how many objects it holds: `python -m tests.adapters.claude_leaks.counted_host --listen ADDRESS`.

Memory as the kernel counts it grows by what allocators keep, of each thread its own, and says little of what a turn left.
"""

import gc
import os
import signal
from pathlib import Path

COUNT_FILE = "LEAKS_COUNT_FILE"


def _tell(*_: object) -> None:
    gc.collect()
    file = Path(os.environ[COUNT_FILE])
    # Whole or not there: somebody waits for it.
    partly = file.with_suffix(".part")
    partly.write_text(str(len(gc.get_objects())))
    partly.rename(file)


if __name__ == "__main__":
    from adapters.claude_agent_sdk.adapter import ClaudeAdapter
    from adapters.sdk.serve import run_adapter_main

    signal.signal(signal.SIGUSR1, _tell)
    run_adapter_main(ClaudeAdapter, "tests.adapters.claude_leaks.counted_host")
