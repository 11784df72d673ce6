"""A worker that never says it is ready."""

import signal

if __name__ == "__main__":
    while True:
        signal.pause()
