"""What the product finds in place of the real world while a simulation runs: clocks, entropy, stores, bus, network.

Nothing of the product is changed: names of its modules that lead outside are bound to something else, and bound back afterwards.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import random
import secrets
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import structlog

from tests.simulation.facades import FacadeChannels
from tests.simulation.loop import SimulatedLoop

EPOCH: Final = 1_800_000_000.0
"""Unix seconds at which the world begins."""


def running() -> SimulatedLoop:
    """The loop that runs. Errors: `RuntimeError` outside of a simulation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


class _Time:
    """Stands in for the module `time`: the clocks of the life that runs."""

    @staticmethod
    def time() -> float:
        loop = running()
        life = loop.current
        return EPOCH + life.skew + loop.now * life.rate

    @staticmethod
    def time_ns() -> int:
        return int(_Time.time() * 1e9)

    @staticmethod
    def monotonic() -> float:
        return running().time()


class _Secrets:
    """Stands in for the module `secrets`."""

    @staticmethod
    def token_bytes(size: int) -> bytes:
        return running().world.random.randbytes(size)

    @staticmethod
    def token_hex(size: int) -> str:
        return running().world.random.randbytes(size).hex()


class _Random:
    """Stands in for the module `random`."""

    @staticmethod
    def uniform(least: float, most: float) -> float:
        return running().world.random.uniform(least, most)

    @staticmethod
    def random() -> float:
        return running().world.random.random()

    @staticmethod
    def choice(values: Any) -> Any:
        return running().world.random.choice(values)

    @staticmethod
    def randrange(*bounds: int) -> int:
        return running().world.random.randrange(*bounds)

    @staticmethod
    def shuffle(values: Any) -> None:
        running().world.random.shuffle(values)


class _Signer:
    """Stands in for `CapabilitySigner`: the world remembers what a token opens."""

    public_key_pem = "none"

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def sign(self, capability: Any, *, deadline_at: float) -> str:
        tokens: dict[str, Any] = running().world.tokens
        token = f"token-{len(tokens) + 1}"
        tokens[token] = capability
        return token


class _Verifier:
    """Stands in for `CapabilityVerifier`: tokens are looked up by the network."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


async def _open_service_store(service: str, *_: Any, **__: Any) -> Any:
    return running().world.store_of(service)


async def _open_segment_log(store: Any, *_: Any, **__: Any) -> Any:
    return store


def _open_bus(url: str | None, environment: str, holder: str, *_: Any) -> Any:
    return running().world.bus_connection(holder)


def _connect(address: Any, token: Any = None, **_: Any) -> Any:
    return running().world.network.connect(address, token)


def _facade_channels() -> Any:
    return FacadeChannels(running().world.network)


OUTSIDE: Final[tuple[tuple[str, str, Any], ...]] = (
    ("services.runs.__main__", "open_service_store", _open_service_store),
    ("services.runs.__main__", "open_segment_log", _open_segment_log),
    ("services.runs.__main__", "open_bus", _open_bus),
    ("services.runs.__main__", "connect", _connect),
    ("services.runs.__main__", "CapabilitySigner", _Signer),
    ("services.runs.__main__", "CapabilityVerifier", _Verifier),
    ("services.runs.clients.tool_provider", "connect", _connect),
    ("services.runs.clients.runtime", "connect", _connect),
    ("services.sessions.__main__", "open_service_store", _open_service_store),
    ("services.sessions.__main__", "CapabilityVerifier", _Verifier),
    ("adapters.sdk.host.registry", "FacadeChannels", _facade_channels),
    ("services.runs.segmenting", "TARGET_SEGMENT_BYTES", 96 * 1024),
)
"""Module, name in it, what it is bound to; segments are small, so that some run has several of them full."""
_MODULES: Final = {"time": (time, _Time), "secrets": (secrets, _Secrets), "random": (random, _Random)}


def _bindings() -> list[tuple[Any, str, Any]]:
    bindings: list[tuple[Any, str, Any]] = []
    for module_name, name, stand_in in OUTSIDE:
        module = importlib.import_module(module_name)
        if not hasattr(module, name):
            raise AssertionError(f"{module_name} has no {name} any more: say in stand_ins.py what leads outside now")
        bindings.append((module, name, stand_in))
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(("services.", "adapters.")):
            bindings += [
                (module, name, stand_in)
                for name, (real, stand_in) in _MODULES.items()
                if getattr(module, name, None) is real
            ]
    return bindings


_known: list[tuple[Any, str, Any]] = []


@contextmanager
def simulated() -> Generator[None]:
    """Everything that leads outside leads into the simulation meanwhile."""
    if not _known:
        _known.extend(_bindings())
    before = [(module, name, getattr(module, name)) for module, name, _ in _known]
    levels = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    structure = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[_dropped],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    for module, name, stand_in in _known:
        setattr(module, name, stand_in)
    engine: Any = sys.modules["services.runs.engine"]
    engine._ATTEMPTS = itertools.count(1)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        if structure is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**structure)
        logging.disable(levels)


def _dropped(_: Any, __: str, event: Any) -> Any:
    try:
        world = running().world
    except RuntimeError:
        raise structlog.DropEvent from None
    world.logged(event)
    raise structlog.DropEvent
