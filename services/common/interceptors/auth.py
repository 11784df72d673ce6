"""Who may call: a service credential on internal listeners, a capability token on facades (architecture, "Security")."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Protocol

from pydantic import SecretStr

from services.common.caller import MAX_SUBJECT_CHARACTERS, Caller
from services.common.capability_token import CapabilityVerifier
from services.common.errors import HarnessError, Reason

AUTHORIZATION = "authorization"
SUBJECT = "harness-subject"
_SCHEME = "bearer "

Metadata = Iterable[tuple[str, str | bytes]]


class Authenticator(Protocol):
    """Decides who calls from the call's metadata; raises `unauthenticated`."""

    def authenticate(self, metadata: Metadata) -> Caller: ...


class ServiceAuthenticator:
    """Internal listeners: any one of several service tokens, so that they can rotate; the subject counts only beside one."""

    def __init__(self, tokens: Sequence[SecretStr]) -> None:
        if not tokens:
            raise ValueError("an internal listener needs at least one service token")
        self._digests = [_digest(token.get_secret_value()) for token in tokens]

    def authenticate(self, metadata: Metadata) -> Caller:
        credential, subject = _read(metadata)
        given = _digest(credential)
        accepted = False
        for digest in self._digests:
            # Constant time, and every token is compared: the answer's time tells neither how much of a token fits nor which.
            accepted |= hmac.compare_digest(digest, given)
        if not accepted:
            raise HarnessError(Reason.UNAUTHENTICATED, "The service credential is not valid.")
        return Caller(subject=subject)


class CapabilityAuthenticator:
    """Facades: a capability token alone; a service token or a subject means nothing here."""

    def __init__(self, verifier: CapabilityVerifier) -> None:
        self._verifier = verifier

    def authenticate(self, metadata: Metadata) -> Caller:
        credential, _ = _read(metadata)
        return Caller(capability=self._verifier.verify(credential))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _read(metadata: Metadata) -> tuple[str, str | None]:
    """The bearer credential and the subject; one of each at most, because a second one is somebody's attempt to be two people."""
    authorization: str | None = None
    subject: str | None = None
    for key, value in metadata:
        if key == AUTHORIZATION:
            if authorization is not None or not isinstance(value, str):
                raise HarnessError(Reason.UNAUTHENTICATED, "Send the metadata authorization once.")
            authorization = value
        elif key == SUBJECT:
            if subject is not None or not isinstance(value, str) or not _is_subject(value):
                raise HarnessError(
                    Reason.UNAUTHENTICATED,
                    f"Send the metadata harness-subject once, 1 to {MAX_SUBJECT_CHARACTERS} printable ASCII characters.",
                )
            subject = value
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise HarnessError(
            Reason.UNAUTHENTICATED, "The credential is missing: send the metadata authorization: Bearer <token>."
        )
    return authorization[len(_SCHEME) :], subject


def _is_subject(text: str) -> bool:
    return 0 < len(text) <= MAX_SUBJECT_CHARACTERS and text.isascii() and text.isprintable() and text == text.strip()


def checked_subject(text: str) -> str | None:
    """The subject of a call on an exchange, whose stream brought the service credential; None for an empty text."""
    if text and not _is_subject(text):
        raise HarnessError(Reason.UNAUTHENTICATED, "The call's subject is not 1 to 256 printable ASCII characters.")
    return text or None
