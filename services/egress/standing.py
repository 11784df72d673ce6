"""Which endpoints have their credential now: for the mesh's own services, so that a missing key is a line in a list and not found by a run (I32).

Asked on the socket that workers use as well, with a service credential; to everybody else the path is not there. No key, no path of a file and no address
is in the answer.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

import orjson
from pydantic import SecretStr

from services.egress.endpoints import CredentialMissing, Endpoint
from services.egress.passage import Headers

PATH: Final = "/endpoints"
READY: Final = "ready"
CREDENTIAL_MISSING: Final = "credential_missing"


class Standing:
    """Tells a service how the endpoints stand."""

    def __init__(self, endpoints: Mapping[str, Endpoint], service_tokens: Sequence[SecretStr]) -> None:
        self._endpoints = endpoints
        self._digests = [_digest(f"Bearer {token.get_secret_value()}") for token in service_tokens]

    def answer(self, method: str, path: str, headers: Headers) -> bytes | None:
        """JSON `{"endpoints": {id: standing}}`; None for any other request, and for one without a service credential."""
        if (method, path) != ("GET", PATH):
            return None
        given = _digest(next((value for name, value in headers if name == "authorization"), ""))
        accepted = False
        for digest in self._digests:
            # Constant time, and every token is compared.
            accepted |= hmac.compare_digest(digest, given)
        if not accepted:
            return None
        return orjson.dumps({"endpoints": {name: _standing(endpoint) for name, endpoint in self._endpoints.items()}})


def _standing(endpoint: Endpoint) -> str:
    try:
        endpoint.credential()
    except CredentialMissing:
        return CREDENTIAL_MISSING
    return READY


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
