"""What the sections of the operator file have in common: strict types, JSON settings, addresses and credentials from files or the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, SecretStr

from services.common.settings import check_address

MAX_SETTINGS_DEPTH: Final = 12
MAX_TOKEN_BYTES: Final = 8_192
_EXACT_INTEGERS: Final = 1 << 53


class Section(BaseModel):
    """A section of the file. Strict: a text where a number belongs is a mistake, not a number. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def check_json(value: object, path: str, depth: int = 1) -> None:
    """Refuses what reaches no reader unchanged. Errors: `ValueError` that names the place."""
    if depth > MAX_SETTINGS_DEPTH:
        raise ValueError(f"{path} is nested more than {MAX_SETTINGS_DEPTH} deep")
    if isinstance(value, Mapping):
        for key, child in cast(Mapping[str, object], value).items():
            check_json(child, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, child in enumerate(cast(list[object], value)):
            check_json(child, f"{path}[{number}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} is not a finite number")
    elif isinstance(value, int) and abs(value) > _EXACT_INTEGERS:
        raise ValueError(f"{path} is beyond 2^53: write it as text, for adapters read numbers as doubles")


def _check_settings(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    check_json(settings, "settings")
    return settings


JsonSettings = Annotated[dict[str, JsonValue], AfterValidator(_check_settings)]
Address = Annotated[str, Field(min_length=1, max_length=512)]
TokenVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
TokenFile = Annotated[str, Field(min_length=1, max_length=4096)]


def resolved_address(text: str, data_dir: Path, key: str = "address") -> str:
    """The address to dial: a relative socket is below `data_dir`. Errors: `ValueError` that begins with `key`."""
    if text.startswith("unix:") and not text.startswith("unix:/"):
        text = f"unix:{data_dir.resolve() / text.removeprefix('unix:')}"
    try:
        return check_address(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}.") from None


def resolved_token(token_env: str | None, token_file: str | None, environment: Mapping[str, str]) -> SecretStr | None:
    """The credential, None if neither source is named. Errors: `ValueError` that begins with the key and never holds the credential."""
    if token_env is not None:
        text, where = environment.get(token_env, ""), "token_env"
        if not text:
            raise ValueError(f"token_env: the environment variable {token_env} is not set.")
    elif token_file is not None:
        text, where = _content(token_file), "token_file"
    else:
        return None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"{where}: the token must be printable ASCII without spaces, and not empty.")
    return SecretStr(text)


def _content(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_TOKEN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no file name"
        raise ValueError(f"token_file: {name!r} cannot be read: {reason}.") from None
    if len(data) > MAX_TOKEN_BYTES:
        raise ValueError(f"token_file: {name!r} is larger than {MAX_TOKEN_BYTES} bytes: that is no token.")
    return data.decode("ascii", errors="replace").strip()
