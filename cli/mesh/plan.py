"""Which processes a mesh on this machine has, and what each is told. Pure: it starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

from cli.mesh.layout import Layout, replica_name
from cli.mesh.operator_file import EmbeddedAdapter
from cli.mesh.replicas import Replicas
from cli.mesh.secrets import SecretFiles

PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""What a service gets of the environment, besides HARNESS_* and OTEL_*: no credential of a provider is meant for it."""

NOT_PASSED_ON = (
    "HARNESS_TOKEN", "HARNESS_URL", "HARNESS_SUBJECT", "HARNESS_SERVICE_TOKENS", "HARNESS_METRICS_LISTEN",
    "HARNESS_STORE_URL", "HARNESS_STORE_URL_FILE",
)  # fmt: skip
"""What is meant for the command alone, or is given to those that need it."""

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
    """Counted from 1."""
    address: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    stop_order: StopOrder
    ready_text: str = ""
    """What its output says when it serves; empty: it announces itself on HARNESS_READY_FD."""
    lifeline: bool = False
    """Whether it gets the mesh's lifeline, by which what it leaves behind ends with the mesh."""

    @property
    def name(self) -> str:
        """Unique in the mesh."""
        return replica_name(self.service, self.replica)

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
    replicas: Replicas = field(default_factory=Replicas)
    token_variables: frozenset[str] = frozenset()
    credential_variables: frozenset[str] = frozenset()
    """Variables that the operator file names: the catalog gets the first, the model egress the second, and nobody else either."""
    model_egress: bool = False
    """Whether the operator file names model endpoints, which sandboxes reach through the model egress."""
    store_url: str = field(default="", repr=False)
    """The database of all services; empty: a SQLite file each."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)


def plan(layout: Layout, secrets: SecretFiles, options: Options) -> list[Component]:
    """The components; the bus first, since it is the only one others are better started after."""
    return [
        _bus(layout, options),
        *(_adapter(adapter, options) for adapter in options.adapters),
        *_services(layout, secrets, options),
        *([_egress(layout, secrets, options)] if options.model_egress else []),
        *_gateways(layout, secrets, options),
    ]


def bus_path(layout: Layout) -> Path:
    """The socket of the embedded bus."""
    return layout.sockets / "bus.sock"


def _services(layout: Layout, secrets: SecretFiles, options: Options) -> list[Component]:
    replicas = options.replicas
    catalog, sessions, sandbox = (_addresses(layout, replicas, name) for name in ("catalog", "sessions", "sandbox"))

    def own(name: str, replica: int) -> dict[str, str]:
        if name == "catalog":
            named = _named(options, options.token_variables)
            config_file = str(options.config_file.absolute())
            egress = {"HARNESS_MODEL_EGRESS_ADDRESS": layout.model_facade} if options.model_egress else {}
            return {**named, **egress, "HARNESS_CONFIG_FILE": config_file, "HARNESS_SESSIONS_ADDRESS": sessions}
        if name == "sessions":
            return {
                "HARNESS_FACADE_LISTEN": layout.facade(replica),
                "HARNESS_CAPABILITY_VERIFY_KEYS_FILE": str(secrets.verify_key),
            }
        if name == "sandbox":
            return {"HARNESS_CATALOG_ADDRESS": catalog, "HARNESS_SANDBOX_DIR": str(layout.sockets / "sb")}
        return {
            "HARNESS_CATALOG_ADDRESS": catalog,
            "HARNESS_SESSIONS_ADDRESS": sessions,
            "HARNESS_SANDBOX_ADDRESS": sandbox,
            "HARNESS_STATE_FACADE_ADDRESS": _beginning_with(
                replica, [layout.facade(each) for each in replicas.of("sessions")]
            ),
            "HARNESS_TOOL_FACADE_LISTEN": layout.tool_facade(replica),
            "HARNESS_TOOL_FACADE_ADDRESS": _beginning_with(
                replica, [layout.tool_facade(each) for each in replicas.of("runs")]
            ),
            **({"HARNESS_MODEL_FACADE_ADDRESS": layout.model_facade} if options.model_egress else {}),
            "HARNESS_BUS_URL": f"unix://{bus_path(layout)}",
            "HARNESS_CAPABILITY_SIGNING_KEY_FILE": str(secrets.signing_key),
        }

    return [
        Component(
            service=name,
            replica=replica,
            address=layout.socket(replica_name(name, replica)),
            command=[sys.executable, "-m", f"services.{name}"],
            environment={
                **_service_environment(secrets, options),
                "HARNESS_LISTEN": layout.socket(replica_name(name, replica)),
                "HARNESS_DATA_DIR": str(layout.data),
                "HARNESS_STORE_URL": options.store_url or f"sqlite://{layout.store / name}.sqlite3",
                "HARNESS_IDENTITY_KEY_FILE": str(secrets.identity_key),
                **own(name, replica),
            },
            stop_order=StopOrder.RUNS if name == "runs" else StopOrder.BACK,
            lifeline=name == "sandbox",
        )
        for name in ("catalog", "sessions", "sandbox", "runs")
        for replica in replicas.of(name)
    ]


def _addresses(layout: Layout, replicas: Replicas, name: str) -> str:
    """Where the replicas of a service listen, as its clients are told."""
    return ",".join(layout.socket(replica_name(name, replica)) for replica in replicas.of(name))


def _beginning_with(replica: int, facades: list[str]) -> str:
    """The facades as one replica of runs tells them to runtimes: each begins with another, for most runtimes use the first."""
    first = (replica - 1) % len(facades)
    return ",".join(facades[first:] + facades[:first])


def _gateways(layout: Layout, secrets: SecretFiles, options: Options) -> list[Component]:
    environment = {
        **_service_environment(secrets, options),
        "HARNESS_CATALOG_ADDRESS": _addresses(layout, options.replicas, "catalog"),
        "HARNESS_RUNS_ADDRESS": _addresses(layout, options.replicas, "runs"),
        "HARNESS_SESSIONS_ADDRESS": _addresses(layout, options.replicas, "sessions"),
    }
    if "HARNESS_API_TOKENS" not in environment and "HARNESS_API_TOKENS_FILE" not in environment:
        token = options.environment.get("HARNESS_TOKEN", "")
        if token:
            environment["HARNESS_API_TOKENS"] = token
    return [
        Component(
            service="gateway",
            replica=replica,
            address=f"{options.host}:{port}",
            command=[sys.executable, "-m", "services.gateway"],
            environment={**environment, "HARNESS_LISTEN": f"{options.host}:{port}"},
            stop_order=StopOrder.FRONT,
        )
        for replica, port in enumerate(options.replicas.ports(options.port), start=1)
    ]


def _egress(layout: Layout, secrets: SecretFiles, options: Options) -> Component:
    return Component(
        service="egress",
        replica=1,
        address=layout.model_facade,
        command=[sys.executable, "-m", "services.egress"],
        environment={
            # The one process that may have a provider's credential from the environment.
            **_named(options, options.credential_variables),
            **_service_environment(secrets, options),
            "HARNESS_CONFIG_FILE": str(options.config_file.absolute()),
            "HARNESS_FACADE_LISTEN": layout.model_facade,
            "HARNESS_SESSIONS_ADDRESS": _addresses(layout, options.replicas, "sessions"),
            "HARNESS_CAPABILITY_VERIFY_KEYS_FILE": str(secrets.verify_key),
        },
        stop_order=StopOrder.BACK,
    )


def _named(options: Options, names: frozenset[str]) -> dict[str, str]:
    return {name: options.environment[name] for name in names if name in options.environment}


def _adapter(adapter: EmbeddedAdapter, options: Options) -> Component:
    # An adapter may need its provider's credentials from the environment, and must not see any of the mesh's.
    environment = {name: value for name, value in options.environment.items() if not name.startswith("HARNESS_")}
    environment |= {name: options.environment[name] for name in ADAPTER_SETTINGS if name in options.environment}
    environment["HARNESS_SHUTDOWN_GRACE_SECONDS"] = str(SHUTDOWN_GRACE_SECONDS)
    return Component(
        service=f"adapter-{adapter.harness_id}",
        replica=1,
        address=adapter.address,
        command=[sys.executable, "-m", adapter.module, "--listen", adapter.address],
        environment=environment,
        stop_order=StopOrder.BACK,
    )


def _bus(layout: Layout, options: Options) -> Component:
    path = bus_path(layout)
    return Component(
        service="bus",
        replica=1,
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
    for name in NOT_PASSED_ON:
        passed.pop(name, None)
    passed.setdefault("HARNESS_SHUTDOWN_GRACE_SECONDS", str(SHUTDOWN_GRACE_SECONDS))
    passed["HARNESS_SERVICE_TOKENS_FILE"] = str(secrets.service_token)
    return passed
