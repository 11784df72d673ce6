"""`python -m tests.standins.agentcore`: serves until it is ended, and says its address on the first line."""

import signal
import threading

from tests.standins.agentcore import AgentCore


def main() -> None:
    """Serves until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with AgentCore(recording=False) as standin:
        print(standin.url, flush=True)  # noqa: T201 - its answer to who started it
        ended.wait()


if __name__ == "__main__":
    main()
