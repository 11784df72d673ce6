"""The `model_endpoints` section of the operator file: where models are reached, and with whose credential (sandbox worker protocol, "What a worker
never receives").

The catalog reads which endpoints there are, the model egress where they are and with what; nobody else has the credential.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from services.common.operator_section import Section, TokenFile, TokenVariable

MAX_ENDPOINTS: Final = 64

EndpointId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]


def _base_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is no address: write https://host or https://host:port/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.query or parts.fragment:
        # A credential in an address ends up in logs.
        raise ValueError(
            "must have no user, query or fragment: a credential goes into credential_file or credential_env"
        )
    return text.rstrip("/")


class ModelEndpoint(Section):
    """One endpoint that speaks the Messages API: the provider's own, or a gateway or proxy in front of it."""

    id: EndpointId
    kind: Literal["anthropic"]
    base_url: Annotated[str, Field(max_length=2048), AfterValidator(_base_url)] = "https://api.anthropic.com"
    credential_file: TokenFile | None = None
    credential_env: TokenVariable | None = None
    credential_header: Literal["x-api-key", "authorization"] = "x-api-key"
    """`authorization` sends it as a bearer token, as gateways often want it."""

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if (self.credential_file is None) == (self.credential_env is None):
            raise ValueError("needs credential_file or credential_env, and not both")
        return self
