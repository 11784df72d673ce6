"""Which processes a mesh on this machine has, and what each is told. Pure: it starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

from cli.mesh.layout import Layout
from cli.mesh.operator_file import EmbeddedAdapter
from cli.mesh.secrets import SecretFiles

PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""What a service gets of the environment, besides HARNESS_* and OTEL_*: no credential of a provider is meant for it."""

ADAPTER_SETTINGS = (
    "HARNESS_LOG_LEVEL",
    "HARNESS_ADAPTER_MAX_RUNS",
    "HARNESS_ADAPTER_MAX_RUNTIMES",
    "HARNESS_ADAPTER_TOKEN",
)
"""What an adapter gets of HARNESS_*: none of the mesh's credentials."""

SHUTDOWN_GRACE_SECONDS = 2.0


class StopOrder(IntEnum):
    """Who is stopped first: those that use others before those that are used."""

    FRONT = 0
    RUNS = 1
    BACK = 2
    BUS = 3


@dataclass(frozen=True, slots=True)
class Component:
    """One process of the mesh."""

    service: str
    replica: int
    address: str
    command: Sequence[str]
    environment: Mapping[str, str]
    stop_order: StopOrder
    ready_text: str = ""
    """What its output says when it serves; empty: it announces itself on HARNESS_READY_FD."""
    lifeline: bool = False
    """Whether it gets the mesh's lifeline, by which what it leaves behind ends with the mesh."""

    @property
    def name(self) -> str:
        """Unique in the mesh."""
        return self.service if self.replica == 0 else f"{self.service}-{self.replica}"

    def at(self, address: str) -> Component:
        """The same component at the address it had: one that picked a free port keeps it over a restart."""
        if address == self.address:
            return self
        return replace(self, address=address, environment={**self.environment, "HARNESS_LISTEN": address})


@dataclass(frozen=True, slots=True)
class Options:
    """What the person who starts the mesh decided."""

    host: str
    port: int
    config_file: Path
    adapters: Sequence[EmbeddedAdapter]
    bus_command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def plan(layout: Layout, secrets: SecretFiles, options: Options) -> list[Component]:
    """The components; the bus first, since it is the only one others are better started after."""
    return [
        _bus(layout, options),
        *(_adapter(adapter, options) for adapter in options.adapters),
        *_services(layout, secrets, options),
        _gateway(layout, secrets, options),
    ]


def bus_path(layout: Layout) -> Path:
    """The socket of the embedded bus."""
    return layout.sockets / "bus.sock"


def _services(layout: Layout, secrets: SecretFiles, options: Options) -> list[Component]:
    facade = f"unix:{layout.sockets / 'facade' / 'state.sock'}"
    catalog, sessions, runs, sandbox = (layout.socket(name) for name in ("catalog", "sessions", "runs", "sandbox"))
    own: dict[str, dict[str, str]] = {
        "catalog": {"HARNESS_CONFIG_FILE": str(options.config_file.absolute())},
        "sessions": {"HARNESS_FACADE_LISTEN": facade, "HARNESS_CAPABILITY_VERIFY_KEYS_FILE": str(secrets.verify_key)},
        "sandbox": {"HARNESS_CATALOG_ADDRESS": catalog, "HARNESS_SANDBOX_DIR": str(layout.sockets / "sb")},
        "runs": {
            "HARNESS_CATALOG_ADDRESS": catalog,
            "HARNESS_SESSIONS_ADDRESS": sessions,
            "HARNESS_SANDBOX_ADDRESS": sandbox,
            "HARNESS_STATE_FACADE_ADDRESS": facade,
            "HARNESS_BUS_URL": f"unix://{bus_path(layout)}",
            "HARNESS_CAPABILITY_SIGNING_KEY_FILE": str(secrets.signing_key),
        },
    }
    addresses = {"catalog": catalog, "sessions": sessions, "runs": runs, "sandbox": sandbox}
    return [
        Component(
            service=name,
            replica=0,
            address=addresses[name],
            command=[sys.executable, "-m", f"services.{name}"],
            environment={
                **_service_environment(secrets, options),
                "HARNESS_LISTEN": addresses[name],
                "HARNESS_DATA_DIR": str(layout.data),
                "HARNESS_STORE_URL": f"sqlite://{layout.store / name}.sqlite3",
                "HARNESS_IDENTITY_KEY_FILE": str(secrets.identity_key),
                **settings,
            },
            stop_order=StopOrder.RUNS if name == "runs" else StopOrder.BACK,
            lifeline=name == "sandbox",
        )
        for name, settings in own.items()
    ]


def _gateway(layout: Layout, secrets: SecretFiles, options: Options) -> Component:
    environment = {
        **_service_environment(secrets, options),
        "HARNESS_LISTEN": f"{options.host}:{options.port}",
        "HARNESS_CATALOG_ADDRESS": layout.socket("catalog"),
        "HARNESS_RUNS_ADDRESS": layout.socket("runs"),
    }
    if "HARNESS_API_TOKENS" not in environment and "HARNESS_API_TOKENS_FILE" not in environment:
        token = options.environment.get("HARNESS_TOKEN", "")
        if token:
            environment["HARNESS_API_TOKENS"] = token
    return Component(
        service="gateway",
        replica=0,
        address=f"{options.host}:{options.port}",
        command=[sys.executable, "-m", "services.gateway"],
        environment=environment,
        stop_order=StopOrder.FRONT,
    )


def _adapter(adapter: EmbeddedAdapter, options: Options) -> Component:
    # An adapter may need its provider's credentials from the environment, and must not see any of the mesh's.
    environment = {name: value for name, value in options.environment.items() if not name.startswith("HARNESS_")}
    environment |= {name: options.environment[name] for name in ADAPTER_SETTINGS if name in options.environment}
    environment["HARNESS_SHUTDOWN_GRACE_SECONDS"] = str(SHUTDOWN_GRACE_SECONDS)
    return Component(
        service=f"adapter-{adapter.harness_id}",
        replica=0,
        address=adapter.address,
        command=[sys.executable, "-m", adapter.module, "--listen", adapter.address],
        environment=environment,
        stop_order=StopOrder.BACK,
    )


def _bus(layout: Layout, options: Options) -> Component:
    path = bus_path(layout)
    return Component(
        service="bus",
        replica=0,
        address=f"unix:{path}",
        command=[
            # The server itself does not know how to die with its parent.
            sys.executable, "-m", "cli.mesh.tether", *options.bus_command,
            "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "600",
            "--dir", str(layout.store), "--save", "", "--appendonly", "no",
            # The bus holds hints only: when it is full, the oldest expiring ones go first.
            "--maxmemory", "256mb", "--maxmemory-policy", "volatile-ttl",
        ],
        environment={name: value for name, value in options.environment.items() if name in PASSED_ON},
        stop_order=StopOrder.BUS,
        ready_text="Ready to accept connections",
    )  # fmt: skip


def _service_environment(secrets: SecretFiles, options: Options) -> dict[str, str]:
    passed = {
        name: value
        for name, value in options.environment.items()
        if name in PASSED_ON or name.startswith(("HARNESS_", "OTEL_"))
    }
    for name in ("HARNESS_TOKEN", "HARNESS_URL", "HARNESS_SUBJECT", "HARNESS_SERVICE_TOKENS", "HARNESS_METRICS_LISTEN"):
        passed.pop(name, None)
    passed.setdefault("HARNESS_SHUTDOWN_GRACE_SECONDS", str(SHUTDOWN_GRACE_SECONDS))
    passed["HARNESS_SERVICE_TOKENS_FILE"] = str(secrets.service_token)
    return passed
