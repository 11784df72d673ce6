"""Per-run capability tokens: the only credential a worker or adapter ever holds (worker protocol, "What a worker never receives").

EdDSA (Ed25519) JWTs. The signer's key stays in the control plane; verifying needs public keys only. A token says what it opens; whether the
generations in it are still the committed ones is decided by the record it is used on, in the same compare-and-set that writes.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from services.common.caller import Capability
from services.common.clock import Clock, SystemClock
from services.common.errors import HarnessError, Reason

ISSUER = "harness"
ALGORITHM = "EdDSA"
MAX_TOKEN_CHARACTERS = 16_384
MAX_TOOL_IDS = 256
MAX_FILE_IDS = 32
CACHE_SIZE = 4_096
_PEM_END = "-----END PUBLIC KEY-----"


def generate_private_key() -> str:
    """A new Ed25519 private key, PEM (PKCS 8, not encrypted)."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")


class CapabilitySigner:
    """Signs tokens with one Ed25519 key (PEM). `ValueError` when the text is no such key."""

    def __init__(self, private_key_pem: str, *, clock: Clock | None = None) -> None:
        try:
            key = load_pem_private_key(private_key_pem.encode("utf-8"), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("the capability key is not an unencrypted PEM private key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("the capability key is not an Ed25519 key")
        self._key = key
        self._clock = clock or SystemClock()
        self.public_key_pem = (
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
        )
        self._key_id = _key_id(key.public_key())

    def sign(self, capability: Capability, *, deadline_at: float) -> str:
        """A token for this capability that ends with the run: `deadline_at` is the run's deadline, Unix seconds, and the latest expiry."""
        if len(capability.tool_ids) > MAX_TOOL_IDS:
            raise ValueError(f"a capability names at most {MAX_TOOL_IDS} tools, not {len(capability.tool_ids)}")
        if len(capability.file_ids) > MAX_FILE_IDS:
            raise ValueError(f"a capability names at most {MAX_FILE_IDS} files, not {len(capability.file_ids)}")
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": capability.audience,
            "iat": int(self._clock.wall()),
            "exp": int(deadline_at),  # rounded down: never later than the run's deadline
            "binding_id": capability.binding_id,
            "epoch": capability.epoch,
            "runtime_generation": capability.runtime_generation,
            "run_id": capability.run_id,
            "tool_ids": list(capability.tool_ids),
        }
        if capability.model_endpoint:
            claims["model_endpoint"] = capability.model_endpoint
        if capability.file_ids:
            claims["file_ids"] = list(capability.file_ids)
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"kid": self._key_id})


class CapabilityVerifier:
    """Verifies tokens against one or several public keys (PEM), so that keys can rotate. It takes tokens of the named audiences, and the servicer of each
    checks that it is called with one of its own (`Caller.require_capability`).

    A verified token is remembered (at most 4,096, least recently used first out); its expiry is checked on every call.
    """

    def __init__(self, public_key_pems: Sequence[str], *audiences: str, clock: Clock | None = None) -> None:
        if not public_key_pems:
            raise ValueError("a capability verifier needs at least one public key")
        keys = [_load_public_key(pem) for pem in public_key_pems]
        self._keys = {_key_id(key): key for key in keys}
        self._audiences = audiences
        self._clock = clock or SystemClock()
        self._verified: OrderedDict[bytes, tuple[Capability, int]] = OrderedDict()

    def verify(self, token: str) -> Capability:
        """The capability of a valid token; `unauthenticated` for every other text, with no hint of which check failed but expiry."""
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise _refused()
        fingerprint = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        known = self._verified.get(fingerprint)
        if known is None:
            known = self._decode(token)
            self._verified[fingerprint] = known
            if len(self._verified) > CACHE_SIZE:
                self._verified.popitem(last=False)
        else:
            self._verified.move_to_end(fingerprint)
        capability, expires_at = known
        if self._clock.wall() >= expires_at:
            raise HarnessError(Reason.UNAUTHENTICATED, "The capability token has expired with its run.")
        return capability

    def _decode(self, token: str) -> tuple[Capability, int]:
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(key_id) if isinstance(key_id, str) else None
            if key is None:
                raise _refused()
            claims = jwt.decode(
                token,
                key,
                # The algorithm is ours, never the header's: no "none", no HMAC over a public key.
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                # Expiry is checked by verify(), on our clock and for remembered tokens too.
                options={
                    "require": ["exp", "iat", "aud", "iss"],
                    "verify_exp": False,
                    "verify_iat": False,
                    # One text that is one of ours, compared here: a list of audiences is nothing we sign.
                    "verify_aud": False,
                },
            )
            capability, expires_at = _capability(claims)
            if capability.audience not in self._audiences:
                raise _refused()
            return capability, expires_at
        except (jwt.PyJWTError, KeyError, TypeError, ValueError):
            raise _refused() from None


def split_keys(text: str) -> list[str]:
    """The single keys of PEM texts in a row, as a setting holds them."""
    return [part.strip() + "\n" + _PEM_END + "\n" for part in text.split(_PEM_END) if part.strip()]


def _capability(claims: dict[str, Any]) -> tuple[Capability, int]:
    capability = Capability(
        audience=_text(claims["aud"]),
        binding_id=_text(claims["binding_id"]),
        epoch=_number(claims["epoch"]),
        runtime_generation=_number(claims["runtime_generation"]),
        run_id=_text(claims["run_id"]),
        tool_ids=_texts(claims["tool_ids"]),
        model_endpoint=_text(claims.get("model_endpoint", "")),
        file_ids=_texts(claims.get("file_ids", [])),
    )
    return capability, _number(claims["exp"])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[object], value)):
        raise ValueError("not a list of texts")
    return tuple(cast(list[str], value))


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("not a whole number")
    return value


def _load_public_key(pem: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode("utf-8"))
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("a capability public key is not a PEM public key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a capability public key is not an Ed25519 key")
    return key


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.blake2b(key.public_bytes(Encoding.Raw, PublicFormat.Raw), digest_size=12).hexdigest()


def _refused() -> HarnessError:
    return HarnessError(Reason.UNAUTHENTICATED, "The capability token is not valid here.")
