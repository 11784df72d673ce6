"""`python -m adapters.betterproto --listen ADDRESS`."""

import argparse
import asyncio
import ctypes
import importlib.util
import ipaddress
import logging
import os
import signal
import sys

EXIT_CONFIGURATION = 2


class _Wrong(Exception):  # noqa: N818 - said to a person, then the process ends
    """A setting that is wrong."""


def main() -> int:
    """Serves until it is told to stop: 0; 2 for a wrong setting."""
    parser = argparse.ArgumentParser(prog="python -m adapters.betterproto", description="Serves the harness over gRPC.")
    parser.add_argument("--listen", metavar="ADDRESS", help="unix:/path or host:port; default: HARNESS_LISTEN")
    parser.add_argument("--socket-mode", default="0600", metavar="OCTAL", help="mode of a unix socket (default 0600)")
    given = parser.parse_args()
    try:
        listen = _address(given.listen or os.environ.get("HARNESS_LISTEN", ""))
        token, grace = (
            os.environ.get("HARNESS_ADAPTER_TOKEN", ""),
            os.environ.get("HARNESS_SHUTDOWN_GRACE_SECONDS", "10"),
        )
        _check_access(listen, token)
        if importlib.util.find_spec("betterproto_contracts") is None:
            raise _Wrong("gen/betterproto is not built: run `python -m adapters.betterproto.generate`")
        logging.basicConfig(level=os.environ.get("HARNESS_LOG_LEVEL", "info").upper(), stream=sys.stderr)
        # Which calls were cancelled is no news.
        logging.getLogger("grpclib").setLevel(logging.CRITICAL)
        _die_with_parent(os.environ.get("HARNESS_DIE_WITH_PARENT", "0"))
        from adapters.betterproto.server import announcer, serve  # the generated package may be missing before this

        mode, seconds = int(given.socket_mode, 8), float(grace)
        asyncio.run(serve(listen, token=token, mode=mode, grace=seconds, announce=announcer()))
    except (_Wrong, ValueError) as error:
        sys.stderr.write(f"configuration error: {error}\n")
        return EXIT_CONFIGURATION
    return 0


def _address(address: str) -> str:
    host, _, port = address.rpartition(":")
    if address.startswith("unix:/") or (host and host != "unix" and port.isdigit() and int(port) < 65_536):
        return address
    raise _Wrong(f"--listen: {address!r} is neither unix:/path nor host:port")


def _check_access(listen: str, token: str) -> None:
    """A port is open to whoever reaches it: it needs a token, or on loopback the word that none is wanted."""
    if listen.startswith("unix:") or token:
        return
    try:
        loopback = ipaddress.ip_address(listen.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback or os.environ.get("HARNESS_ADAPTER_ALLOW_ANONYMOUS") != "1":
        raise _Wrong(
            "--listen: a port needs HARNESS_ADAPTER_TOKEN (or, on 127.0.0.1, HARNESS_ADAPTER_ALLOW_ANONYMOUS=1)"
        )


def _die_with_parent(wanted: str) -> None:
    if wanted in ("", "0"):
        return
    parent = os.getppid() if wanted == "1" else int(wanted)
    if ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        sys.exit("the parent cannot be watched, or is gone")


if __name__ == "__main__":
    sys.exit(main())
