"""The port of a backend: something that makes, recognises and destroys sandboxes. Backends are in `services.sandbox.backends`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from services.sandbox.profile import Profile


class End(StrEnum):
    """Why a sandbox ended by itself."""

    EXIT = "exit"
    MEMORY = "memory"
    MESH = "mesh"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a backend makes. `sandbox_id` is the lease id: unique for ever, so a sandbox is never mistaken for another (I29)."""

    sandbox_id: str
    profile: Profile
    facades: Mapping[str, str]
    """Audience to the address the control plane knows; unix sockets are let in."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox whose worker said it is ready."""

    address: str
    """Where the worker is dialled from outside."""
    facades: Mapping[str, str]
    """Audience to the address as seen from inside."""
    handle: Mapping[str, Any]
    """JSON-safe; recognises the sandbox beyond doubt, also in another process."""


Ended = Callable[[str], None]
"""Called on the event loop with the sandbox id, once, when a sandbox that was created or adopted ends by itself."""


class Backend(Protocol):
    """All of a sandbox is gone when `destroy` returns; nothing of it exists before `create` is called."""

    missing: list[str]
    """What a strict sandbox needs and is not to be had there; empty when strict sandboxes can be made."""
    place: str
    """Names where its sandboxes are: the same again after a restart, another for every other process of the service."""

    def on_ended(self, callback: Ended) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Makes it and waits for the worker's own signal. `HarnessError` SANDBOX_NOT_READY; then nothing of it is left."""
        ...

    def is_alive(self, sandbox_id: str, handle: Mapping[str, Any]) -> bool:
        """Whether exactly that sandbox runs; a process that merely has its number does not count."""
        ...

    def how_it_ended(self, sandbox_id: str) -> End:
        """Why a sandbox that is not alive ended, as far as that can be known before it is destroyed."""
        ...

    async def adopt(self, sandbox_id: str, handle: Mapping[str, Any]) -> bool:
        """Watches a sandbox that another process made; False when it is not alive."""
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """Kills every process of it and removes what it kept. Idempotent. I27: the processes are dead within 2 s."""
        ...

    def all_end(self) -> bool:
        """Whether every sandbox of this place ends with this process: nobody else keeps them alive."""
        ...

    async def list_all(self) -> list[str]:
        """The ids of everything there is or that something is left of."""
        ...

    async def close(self) -> None:
        """Stops watching. Destroys nothing."""
        ...
