"""The keys of a mesh on this machine, made once and kept in files that only its user can read."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from services.common.capability_token import generate_private_key
from services.common.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Paths, never values: a process reads what it is given by the `…_FILE` variables."""

    service_token: Path
    identity_key: Path
    signing_key: Path
    verify_key: Path


def service_token_file(folder: Path) -> Path:
    """Where the token is that the services of the mesh ask each other for."""
    return folder / "service-token"


def secret_files(folder: Path) -> SecretFiles:
    """The files, made now if they are not there."""
    files = SecretFiles(
        service_token_file(folder),
        folder / "identity-key",
        folder / "capability-key.pem",
        folder / "capability-public.pem",
    )
    _keep(files.service_token, secrets.token_urlsafe(32))
    # The identity key is part of every id: losing it orphans every conversation, so it is made once and never again.
    _keep(files.identity_key, secrets.token_urlsafe(48))
    private = _keep(files.signing_key, generate_private_key())
    _keep(files.verify_key, _public_half(files.signing_key, private))
    return files


def _keep(path: Path, value: str) -> str:
    """What the file holds; `value`, written to it durably, if there was none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; move it away to have a new one made.") from None
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return value


def _public_half(path: Path, private: str) -> str:
    try:
        key = load_pem_private_key(private.encode("ascii"), None)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} holds no private key: {error}; move it away to have a new one made."
        ) from None
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
