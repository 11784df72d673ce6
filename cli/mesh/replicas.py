"""How many processes each service of a mesh has: `--replicas runs=2,gateway=2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.common.errors import ConfigurationError

SERVICES: Final = ("catalog", "sessions", "runs", "gateway")
"""What may have several. An adapter host keeps its provider calls in memory, and the sandbox service owns processes of this machine: one of each."""
MAX_REPLICAS: Final = 16
MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Replicas:
    """The numbers that were asked for; one of everything else."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    def of(self, service: str) -> Sequence[int]:
        """The numbers of a service's replicas, from 1."""
        return range(1, self.counts.get(service, 1) + 1)

    def ports(self, first: int) -> Sequence[int]:
        """The ports of the gateways: consecutive from the first, or 0 (any free one) for each. `ConfigurationError` when there are not as many."""
        gateways = self.of("gateway")
        last = first + len(gateways) - 1
        if first and last > MAX_PORT:
            raise ConfigurationError(
                f"--port: {len(gateways)} gateways on consecutive ports from {first} would need port {last}, and the last there is is {MAX_PORT}."
            )
        return [first + replica - 1 if first else 0 for replica in gateways]


def parse_replicas(text: str) -> Replicas:
    """What `--replicas` says: `service=number`, separated by commas. `ConfigurationError` that names the part that is wrong."""
    counts: dict[str, int] = {}
    for part in (each.strip() for each in text.split(",")):
        service, equals, number = (each.strip() for each in part.partition("="))
        if not equals or not number.isascii() or not number.isdigit():
            raise ConfigurationError(f"--replicas: {part!r} is not service=number, like runs=2,gateway=2.")
        if service not in SERVICES:
            raise ConfigurationError(
                f"--replicas: {service!r} cannot have replicas; these can: {', '.join(SERVICES)}. Adapters, the sandbox service and the bus "
                "are one process each."
            )
        if service in counts:
            raise ConfigurationError(f"--replicas: {service} is named twice.")
        if not 1 <= int(number[:6]) <= MAX_REPLICAS or len(number) > 6:
            raise ConfigurationError(f"--replicas: {service} may have 1 to {MAX_REPLICAS} processes, not {number}.")
        counts[service] = int(number)
    return Replicas(counts)
