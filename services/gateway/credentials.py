"""Who calls: one of several internal tokens, and the subject the BFF acts for (REST API; I2, I22)."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from pydantic import SecretStr

from services.common.caller import MAX_SUBJECT_CHARACTERS
from services.common.errors import HarnessError, Reason

AUTHORIZATION = b"authorization"
SUBJECT = b"x-harness-engine-subject"
_SCHEME = b"bearer "

Headers = Iterable[tuple[bytes, bytes]]


class Credentials:
    """Checks `Authorization` and `X-Harness-Engine-Subject`; anything but exactly one good value of each is 401."""

    def __init__(self, tokens: Sequence[SecretStr]) -> None:
        if not tokens:
            raise ValueError("the REST surface needs at least one token")
        self._digests = [hashlib.sha256(token.get_secret_value().encode("utf-8")).digest() for token in tokens]

    def subject(self, headers: Headers) -> str:
        """The caller's subject. Raises `unauthenticated`; no text ever quotes what came."""
        authorization: list[bytes] = []
        subjects: list[bytes] = []
        for name, value in headers:
            if name == AUTHORIZATION:
                authorization.append(value)
            elif name == SUBJECT:
                subjects.append(value)
        self._check_token(authorization)
        # A second subject is somebody's attempt to be two people.
        if len(subjects) != 1 or not _is_subject(subjects[0]):
            raise HarnessError(
                Reason.UNAUTHENTICATED,
                f"Send the header X-Harness-Engine-Subject once, 1 to {MAX_SUBJECT_CHARACTERS} printable ASCII characters.",
            )
        return subjects[0].decode("ascii")

    def _check_token(self, authorization: list[bytes]) -> None:
        if len(authorization) != 1 or authorization[0][: len(_SCHEME)].lower() != _SCHEME:
            raise HarnessError(Reason.UNAUTHENTICATED, "Send the header Authorization: Bearer <internal token> once.")
        given = hashlib.sha256(authorization[0][len(_SCHEME) :]).digest()
        accepted = False
        for digest in self._digests:
            # Constant time, and every token is compared: the answer's time tells neither how much fits nor which.
            accepted |= hmac.compare_digest(digest, given)
        if not accepted:
            raise HarnessError(Reason.UNAUTHENTICATED, "The internal token is not valid.")


def _is_subject(value: bytes) -> bool:
    return (
        0 < len(value) <= MAX_SUBJECT_CHARACTERS
        and all(0x20 <= byte < 0x7F for byte in value)
        and value == value.strip()
    )
