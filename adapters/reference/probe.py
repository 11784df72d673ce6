"""A report of what this process can see and reach, to show how well a sandbox isolates. It changes nothing and is bounded."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any, cast

import orjson

MAX_TARGETS = 16
MAX_ENTRIES = 64
MAX_NAMES = 256
CONNECT_SECONDS = 1.0
CHILD_SECONDS = 5.0
# Set apart because only a child may try: a namespace is for a process's life.
_TRY_NAMESPACE = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(None).unshare(int(sys.argv[1])) == 0 else 1)"
_NAMESPACES = {"user": 0x10000000, "network": 0x40000000, "mount": 0x00020000, "pid": 0x20000000}


async def report(asked: dict[str, Any]) -> str:
    """JSON of: environment (names, never values), ids, process status, network interfaces, visible processes, namespaces it could make, and for
    the given `connect` addresses, `paths` and `writable` paths (16 each at most) whether they are reachable, visible, writable.
    """
    seen: dict[str, Any] = await asyncio.to_thread(_look, _texts(asked, "paths"), _texts(asked, "writable"))
    addresses = _texts(asked, "connect")
    reached = await asyncio.gather(*(_connect(address) for address in addresses))
    seen["connect"] = dict(zip(addresses, reached, strict=True))
    seen["namespaces"] = {name: await _can_unshare(flag) for name, flag in _NAMESPACES.items()}
    return orjson.dumps(seen).decode()


def _look(paths: list[str], writable: list[str]) -> dict[str, Any]:
    names = sorted(os.environ)
    return {
        "environment": {
            "names": names[:MAX_NAMES],
            "count": len(names),
            "with_value": sum(map(bool, os.environ.values())),
        },
        "ids": {"uid": os.getuid(), "euid": os.geteuid(), "gid": os.getgid(), "groups": os.getgroups()[:MAX_ENTRIES]},
        "pid": os.getpid(),
        "status": _status(),
        "interfaces": _interfaces(),
        "processes": _processes(),
        "paths": {path: _visible(path) for path in paths},
        "writable": {path: os.access(path, os.W_OK) for path in writable},
    }


def _interfaces() -> list[str] | dict[str, str]:
    try:
        return [name for _, name in socket.if_nameindex()][:MAX_ENTRIES]
    except OSError as error:  # where the kernel refuses the socket that asks for them, none can be used either
        return {"error": _errno(error)}


def _status() -> dict[str, str]:
    wanted = {"CapEff", "CapBnd", "NoNewPrivs", "Seccomp"}
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError as error:
        return {"error": _errno(error)}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs if name in wanted}


def _processes() -> dict[str, Any]:
    try:
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError as error:
        return {"error": _errno(error)}
    return {"count": len(pids), "pids": pids[:MAX_NAMES]}


def _visible(path: str) -> dict[str, Any]:
    try:
        if not Path(path).is_dir():
            size = Path(path).stat().st_size
            with open(path, "rb") as file:
                file.read(1)
            return {"kind": "file", "size": size}
        entries = sorted(os.listdir(path))
    except OSError as error:
        return {"error": _errno(error)}
    return {"kind": "folder", "count": len(entries), "entries": entries[:MAX_ENTRIES]}


async def _connect(address: str) -> str:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if address.startswith("unix:"):
                _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
            else:
                host, _, port = address.rpartition(":")
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return _errno(error)
    except (ValueError, OverflowError):
        return "not an address"
    writer.close()
    return "connected"


async def _can_unshare(flag: int) -> bool | str:
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", _TRY_NAMESPACE, str(flag), stderr=asyncio.subprocess.DEVNULL
        )
    except OSError as error:
        return _errno(error)
    try:
        async with asyncio.timeout(CHILD_SECONDS):
            return await child.wait() == 0
    except TimeoutError:
        return "timeout"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _errno(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _texts(asked: dict[str, Any], name: str) -> list[str]:
    value = asked.get(name)
    if not isinstance(value, list):
        return []
    return [str(item)[:512] for item in cast("list[Any]", value)[:MAX_TARGETS]]
