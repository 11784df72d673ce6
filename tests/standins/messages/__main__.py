"""`python -m tests.standins.messages [--port 0] [--unix PATH]`: serves until it is told to stop, and says where."""

import argparse
import asyncio
import signal
import sys

from tests.standins.messages.server import serving


async def _serve(port: int, path: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(port=port, path=path) as server:
        sys.stdout.write(f"{server.url or f'unix:{path}'}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.standins.messages", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0: any that is free")
    parser.add_argument("--unix", default="", metavar="PATH", help="a unix socket instead")
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.unix))
