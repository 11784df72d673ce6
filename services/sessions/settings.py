"""Settings of the sessions service (architecture, "Configuration")."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from services.common.capability_token import CapabilityVerifier, split_keys
from services.common.settings import Address, CommaSeparated, ServiceSettings
from services.sessions.files.media import DEFAULT_MEDIA_TYPES, Allowed


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
    max_file_bytes: Annotated[int, Field(ge=1, le=67_108_864, description="Bytes of one uploaded file (I35).")] = (
        33_554_432
    )
    max_files_of_subject: Annotated[
        int, Field(ge=1, le=100_000, description="Files that one subject may have at a time (I35).")
    ] = 1_000
    max_file_bytes_of_subject: Annotated[
        int,
        Field(ge=1, le=1 << 44, description="Bytes that all files of one subject may have together (I35)."),
    ] = 1_073_741_824
    file_media_types: Annotated[
        CommaSeparated,
        Field(description="Media types of files that may be uploaded, each exactly; content is checked against it."),
    ] = DEFAULT_MEDIA_TYPES
    file_life_seconds: Annotated[
        float,
        Field(ge=1, le=31_536_000, description="Seconds an uploaded file is kept; longer where a run names it."),
    ] = 604_800.0
    file_transfer_seconds: Annotated[
        float,
        Field(gt=0, le=3600, description="Seconds that an upload, a download or a read of a file may take (I35)."),
    ] = 300.0
    max_file_transfers: Annotated[
        int, Field(ge=1, le=1024, description="Files read or written at once; each takes up to 3 MiB of memory (I35).")
    ] = 64
    max_file_transfers_of_subject: Annotated[
        int, Field(ge=1, le=64, description="Files of one subject, or read by one run, at once (I35).")
    ] = 8
    store_check_seconds: Annotated[
        float, Field(ge=0.05, le=3600, description="Seconds between two looks at whether the store answers.")
    ] = 5.0

    @field_validator("capability_verify_keys")
    @classmethod
    def _check_keys(cls, keys: SecretStr) -> SecretStr:
        CapabilityVerifier(split_keys(keys.get_secret_value()), "state")
        return keys

    @field_validator("file_media_types")
    @classmethod
    def _check_media_types(cls, media_types: tuple[str, ...]) -> tuple[str, ...]:
        Allowed(media_types)
        return media_types

    def verify_keys(self) -> list[str]:
        """Each public key as PEM."""
        return split_keys(self.capability_verify_keys.get_secret_value())
