"""Settings of the sessions service (architecture, "Configuration")."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from services.common.capability_token import CapabilityVerifier, split_keys
from services.common.settings import Address, ServiceSettings


class SessionsSettings(ServiceSettings):
    """What the sessions service is told."""

    facade_listen: Annotated[
        Address,
        Field(description="Where runtimes reach their thread state, with capability tokens only."),
    ]
    capability_verify_keys: Annotated[
        SecretStr,
        Field(description="Public keys (PEM, one after the other) of those that sign capability tokens."),
    ]
    max_waiting_turns: Annotated[
        int, Field(ge=1, le=1000, description="Runs that may await the slot of one conversation (I35).")
    ] = 32
    max_part_transfers: Annotated[
        int, Field(ge=1, le=1024, description="Parts read or written at once; each takes up to 8 MiB of memory (I35).")
    ] = 32
    max_part_transfers_of_binding: Annotated[
        int, Field(ge=1, le=64, description="Parts of one conversation read or written at once (I35).")
    ] = 4
    part_transfer_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="Seconds that reading a conversation's state, or writing one part, may take (I35).",
        ),
    ] = 60.0
    part_grace_seconds: Annotated[
        float, Field(ge=1, le=86_400, description="Age at which a part is first asked whether anything needs it.")
    ] = 600.0
    part_recheck_seconds: Annotated[
        float, Field(ge=1, le=2_592_000, description="Seconds after which a part that was needed is asked again.")
    ] = 86_400.0
    part_sweep_seconds: Annotated[
        float, Field(ge=0.05, le=86_400, description="Seconds between two turns of collecting parts nobody needs.")
    ] = 60.0
    store_check_seconds: Annotated[
        float, Field(ge=0.05, le=3600, description="Seconds between two looks at whether the store answers.")
    ] = 5.0

    @field_validator("capability_verify_keys")
    @classmethod
    def _check_keys(cls, keys: SecretStr) -> SecretStr:
        CapabilityVerifier(split_keys(keys.get_secret_value()), "state")
        return keys

    def verify_keys(self) -> list[str]:
        """Each public key as PEM."""
        return split_keys(self.capability_verify_keys.get_secret_value())
