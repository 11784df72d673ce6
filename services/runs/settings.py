"""Settings of the runs service; every number is a bound (I35)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from services.common.capability_token import CapabilityVerifier, split_keys
from services.common.settings import Address, Addresses, ServiceSettings


class RunsSettings(ServiceSettings):
    """What the runs service is told on top of any service."""

    catalog_address: Annotated[Addresses, Field(description="Where the catalog service is: its replicas' addresses.")]
    sessions_address: Annotated[Addresses, Field(description="Where the sessions service is: its replicas' addresses.")]
    sandbox_address: Annotated[
        Address | None,
        Field(description="Where the sandbox service is; without it, profiles that need a sandbox fail."),
    ] = None
    state_facade_address: Annotated[
        Addresses,
        Field(
            description="Where runtimes reach the thread-state facade of the sessions service: the addresses of its replicas; the first 8 are told to them."
        ),
    ]
    tool_facade_listen: Annotated[
        Address | None,
        Field(
            description="Where runtimes reach the tool broker, with capability tokens only; without it, agents with tools start no run."
        ),
    ] = None
    tool_facade_address: Annotated[
        Addresses | None,
        Field(
            description="Where runtimes are told to reach the tool broker: its replicas' addresses, the first 8 of them; none: where this process listens."
        ),
    ] = None
    file_keep_seconds: Annotated[
        float,
        Field(
            ge=172_800,
            le=31_536_000,
            description="Seconds that a file is kept from the start or resume that names it, at least: so long may a person take to answer what the run asks.",
        ),
    ] = 2_592_000.0
    model_facade_address: Annotated[
        Addresses | None,
        Field(
            description="Where sandbox workers are told to reach the model egress; without it, profiles with a model endpoint start no run."
        ),
    ] = None
    bus_url: Annotated[
        str | None,
        Field(
            description="Redis or Valkey that carries live notices: `redis://host:port/0` or `unix:///path`; none: the log alone."
        ),
    ] = None
    capability_signing_key: Annotated[
        SecretStr, Field(description="Ed25519 private key (PEM) that signs the runs' capability tokens.")
    ]
    capability_verify_keys: Annotated[
        SecretStr | None,
        Field(
            description="Public keys (PEM, one after the other) whose tokens the tool broker takes besides those of its own signing key: while that is rotated."
        ),
    ] = None
    max_active_runs: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="Runs executed here at once; more of them wait, each harness in turn. One harness may have about eight ninths of them.",
        ),
    ] = 500
    max_queued_runs: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="Runs of one profile that wait here for an executor; one more start with it is refused with `capacity`.",
        ),
    ] = 2_000
    lease_ttl_seconds: Annotated[
        float, Field(ge=0.5, le=300, description="Seconds after which a silent executor counts as dead.")
    ] = 5.0
    sweep_interval_seconds: Annotated[
        float, Field(ge=0.05, le=60, description="Seconds between two looks for runs that nobody cares for.")
    ] = 0.5
    cancel_grace_seconds: Annotated[
        float,
        Field(
            ge=0.05,
            le=60,
            description="Seconds an executor gets to carry out a cancel before the run is taken from it.",
        ),
    ] = 2.0
    reservation_grace_seconds: Annotated[
        float,
        Field(
            ge=0.1,
            le=60,
            description="Seconds between reserving a conversation's slot and storing the run before the reservation is given up.",
        ),
    ] = 2.0
    queue_seconds: Annotated[
        float,
        Field(ge=1, le=86_400, description="Seconds a run may wait for its turn before it fails with `capacity`."),
    ] = 900.0
    runtime_start_seconds: Annotated[
        float, Field(ge=0.5, le=600, description="Seconds to make or find the runtime of a run before it fails.")
    ] = 60.0
    reattach_seconds: Annotated[
        float,
        Field(ge=0.1, le=60, description="Seconds to find a runtime again whose stream broke before the run fails."),
    ] = 5.0
    commit_seconds: Annotated[
        float,
        Field(
            ge=0.5,
            le=60,
            description="Seconds to commit a conversation's state before its durability counts as uncertain.",
        ),
    ] = 10.0
    tool_calls_per_provider: Annotated[
        int,
        Field(
            ge=1,
            le=1_000,
            description="Calls of one provider's tools that this process makes at once, out of 1,000 in all; one more is refused with `capacity`.",
        ),
    ] = 200
    retention_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=315_360_000,
            description="Seconds a run and its events are kept after its end; its bare record, as long again.",
        ),
    ] = 2_592_000

    @field_validator("capability_verify_keys")
    @classmethod
    def _check_keys(cls, keys: SecretStr | None) -> SecretStr | None:
        if keys is not None:
            CapabilityVerifier(split_keys(keys.get_secret_value()), "tool")
        return keys

    def verify_keys(self) -> list[str]:
        """Each further public key as PEM."""
        keys = self.capability_verify_keys
        return [] if keys is None else split_keys(keys.get_secret_value())

    @model_validator(mode="after")
    def _waits_fit(self) -> Self:
        if self.sweep_interval_seconds > self.lease_ttl_seconds:
            raise ValueError("HARNESS_SWEEP_INTERVAL_SECONDS must not be longer than HARNESS_LEASE_TTL_SECONDS")
        if self.tool_facade_address is not None and self.tool_facade_listen is None:
            raise ValueError(
                "HARNESS_TOOL_FACADE_ADDRESS needs HARNESS_TOOL_FACADE_LISTEN: this is one of the replicas"
            )
        return self

    @property
    def tool_facade_addresses(self) -> str | None:
        """Where runtimes reach the tool broker; None: there is none."""
        return self.tool_facade_address or self.tool_facade_listen
