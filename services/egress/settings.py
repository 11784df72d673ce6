"""What the model egress is told (I32, I35)."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from services.common.capability_token import CapabilityVerifier, split_keys
from services.common.settings import Address, Addresses, ProcessSettings

AUDIENCE = "model"


class EgressSettings(ProcessSettings):
    """Settings of `python -m services.egress`."""

    config_file: Annotated[
        Path,
        Field(
            description="The operator file, of which `model_endpoints` is read; its credentials are read here alone."
        ),
    ]
    facade_listen: Annotated[
        Address,
        Field(
            description="Where sandbox workers reach their model, over HTTP with capability tokens: `unix:/path` or `host:port`."
        ),
    ]
    sessions_address: Annotated[
        Addresses,
        Field(
            description="Where the sessions service is: its replicas' addresses. It says which run holds a conversation."
        ),
    ]
    capability_verify_keys: Annotated[
        SecretStr,
        Field(description="Public keys (PEM, one after the other) of those that sign capability tokens."),
    ]
    max_requests: Annotated[int, Field(ge=1, le=100_000, description="Requests at once; one more is answered 529.")] = (
        512
    )
    max_requests_of_run: Annotated[
        int, Field(ge=1, le=1_000, description="Requests of one run at once; one more is answered 429.")
    ] = 16
    max_body_bytes: Annotated[
        int, Field(ge=1_024, le=268_435_456, description="Bytes of a request's body; more is 413.")
    ] = 33_554_432
    max_connections: Annotated[
        int, Field(ge=1, le=100_000, description="Connections of workers at once; one more is answered 529.")
    ] = 2_048
    connect_seconds: Annotated[float, Field(gt=0, le=300, description="Seconds to reach an endpoint.")] = 10.0
    silence_seconds: Annotated[
        float,
        Field(
            gt=0, le=3_600, description="Seconds an endpoint, or a worker, may be silent in the middle of a request."
        ),
    ] = 300.0
    response_seconds: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds a whole request with its answer may take.")
    ] = 3_600.0

    look_again_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=300,
            description="Seconds between two looks whether the run of a request that is being answered still holds its conversation.",
        ),
    ] = 5.0

    @field_validator("capability_verify_keys")
    @classmethod
    def _check_keys(cls, keys: SecretStr) -> SecretStr:
        CapabilityVerifier(split_keys(keys.get_secret_value()), AUDIENCE)
        return keys

    def verify_keys(self) -> list[str]:
        """Each public key as PEM."""
        return split_keys(self.capability_verify_keys.get_secret_value())
