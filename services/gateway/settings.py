"""What the gateway is told (REST API; I32, I35)."""

import ipaddress
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from services.common.settings import Address, Addresses, ProcessSettings, Tokens

DEVELOPMENT_TOKEN = "local-development-only"  # noqa: S105 - public on purpose, and refused off loopback


class GatewaySettings(ProcessSettings):
    """Settings of `python -m services.gateway`."""

    listen: Annotated[
        Address, Field(description="Where HTTP is served: `host:port` (port 0 picks a free one) or `unix:/path`.")
    ] = "127.0.0.1:8010"
    api_tokens: Annotated[
        Tokens | None,
        Field(
            description="Internal service tokens the BFF may send, all accepted (rotation). On loopback and unix sockets alone it may "
            f"stay empty and is `{DEVELOPMENT_TOKEN}`; anywhere else it must be set, to something else."
        ),
    ] = None
    catalog_address: Annotated[
        Addresses, Field(description="Where the catalog service listens: the addresses of its replicas.")
    ]
    runs_address: Annotated[
        Addresses, Field(description="Where the runs service listens: the addresses of its replicas.")
    ]
    sessions_address: Annotated[
        Addresses,
        Field(description="Where the sessions service, which keeps the files, listens: the addresses of its replicas."),
    ]
    max_connections: Annotated[
        int, Field(ge=8, le=1_000_000, description="HTTP connections at once; one more is answered 503 and closed.")
    ] = 8_192
    max_header_bytes: Annotated[
        int, Field(ge=1_024, le=1_048_576, description="Bytes of a request's line and headers together; more is 431.")
    ] = 32_768
    # The largest request the contract allows (message and context) with every character written as \\uXXXX fits.
    max_body_bytes: Annotated[
        int, Field(ge=1_024, le=67_108_864, description="Bytes of a request body; more is 413.")
    ] = 10_485_760
    max_file_bytes: Annotated[
        int,
        Field(ge=1, le=67_108_864, description="Bytes of an uploaded file; more is 413. As in the sessions service."),
    ] = 33_554_432
    max_file_transfers: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="Files sent and received at once, each with up to 4 MiB of memory; one more is 503 `capacity`.",
        ),
    ] = 64
    file_transfer_seconds: Annotated[
        float, Field(gt=0, le=3600, description="Seconds an upload or a download may take. As in the sessions service.")
    ] = 300.0
    header_timeout_seconds: Annotated[
        float, Field(gt=0, le=600, description="Seconds a connection has to send a complete request head.")
    ] = 10.0
    body_timeout_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=600,
            description="Seconds a request has to send its whole body, or a file each piece of it; later is 408.",
        ),
    ] = 30.0
    keep_alive_timeout_seconds: Annotated[
        int, Field(ge=1, le=3600, description="Seconds an idle connection is kept between two requests.")
    ] = 65
    invoke_timeout_seconds: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds `POST /api/v1/invoke` waits for the end of its run.")
    ] = 930.0
    max_streams: Annotated[
        int, Field(ge=1, le=1_000_000, description="Event streams at once; one more is 503 `capacity`.")
    ] = 4_096
    stream_keep_alive_seconds: Annotated[
        float, Field(gt=0, le=600, description="Seconds of silence after which a stream sends a comment.")
    ] = 15.0
    stream_stall_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="Seconds the reader of a stream or a file may read nothing while there is something to read.",
        ),
    ] = 300.0
    stream_ring_bytes: Annotated[
        int,
        Field(ge=65_536, le=1_073_741_824, description="Encoded events of one run kept in memory for its subscribers."),
    ] = 2_097_152
    stream_retry_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="Seconds a stream outlives the runs service before it is closed for the client to resume.",
        ),
    ] = 30.0

    @model_validator(mode="after")
    def _token_fits_address(self) -> Self:
        # I32: an address others can reach is never opened with a token that everybody knows.
        if is_local(self.listen):
            return self
        if self.api_tokens is None:
            raise ValueError(
                f"HARNESS_API_TOKENS is not set, and HARNESS_LISTEN ({self.listen}) is not a loopback address: set a secret token, "
                "or listen on 127.0.0.1"
            )
        if any(token.get_secret_value() == DEVELOPMENT_TOKEN for token in self.api_tokens):
            raise ValueError(
                f"HARNESS_API_TOKENS contains the public development token, and HARNESS_LISTEN ({self.listen}) is not a loopback "
                "address: use a secret token"
            )
        return self

    def accepted_tokens(self) -> tuple[SecretStr, ...]:
        """The tokens the REST surface accepts."""
        return self.api_tokens if self.api_tokens is not None else (SecretStr(DEVELOPMENT_TOKEN),)


def is_local(address: str) -> bool:
    """Whether only this machine reaches the address."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
