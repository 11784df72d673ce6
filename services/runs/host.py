"""Where a runtime is called, and with what (worker protocol, "What a worker never receives"; I28)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr


@dataclass(frozen=True, slots=True)
class Host:
    """A process that serves runtimes. `credential` is what its adapter host asks for; None: it asks for nothing, as sandbox workers do."""

    address: str
    credential: SecretStr | None = None
