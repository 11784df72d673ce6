"""Settings of the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from services.common.settings import Address, Addresses, ServiceSettings


class CatalogSettings(ServiceSettings):
    """What the catalog is told."""

    config_file: Annotated[
        Path, Field(description="The operator file: which adapters may be used, with which profiles.")
    ]
    adapter_poll_seconds: Annotated[
        float, Field(ge=0.1, le=300, description="Seconds between two looks at an adapter that is well.")
    ] = 5.0
    adapter_timeout_seconds: Annotated[
        float,
        Field(gt=0, le=60, description="Seconds an adapter has to answer about itself or a blueprint (I23, I35)."),
    ] = 3.0
    model_egress_address: Annotated[
        Address | None,
        Field(
            description="Where the model egress is: `unix:/path` or `host:port`. Without it, no list says which model endpoint lacks its key."
        ),
    ] = None
    sessions_address: Annotated[
        Addresses | None,
        Field(
            description="Where the sessions service is: its replicas' addresses. Without it, what adapters keep for agents is made and updated, never removed."
        ),
    ] = None
    reconcile_seconds: Annotated[
        float,
        Field(ge=0.1, le=86_400, description="Seconds between two times that an adapter is told which agents live."),
    ] = 60.0
