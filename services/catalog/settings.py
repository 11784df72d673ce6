"""Settings of the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from services.common.settings import ServiceSettings


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
