"""The question to the model egress, which is asked over HTTP like everything it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import httpx
import orjson
from pydantic import SecretStr

from services.catalog.endpoint_watch import EgressAway
from services.common.model_endpoints import MAX_ENDPOINTS

PATH: Final = "/endpoints"
READY: Final = "ready"
OK: Final = 200
MAX_BYTES: Final = 64 * 1024
_HOST: Final = "http://model-egress"


class EgressClient:
    """One model egress."""

    def __init__(self, address: str, token: SecretStr, timeout: float) -> None:
        """`address`: `unix:/path` or `host:port`. `timeout`: seconds for an answer."""
        unix = address.startswith("unix:")
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=address.removeprefix("unix:")) if unix else None,
            base_url=_HOST if unix else f"http://{address}",
            headers={"authorization": f"Bearer {token.get_secret_value()}"},
            timeout=timeout,
            trust_env=False,
        )

    async def endpoints(self) -> Mapping[str, bool]:
        """Whether each endpoint has its credential, by id. Errors: `EgressAway`."""
        try:
            async with self._client.stream("GET", PATH) as response:
                if response.status_code != OK:
                    raise EgressAway(f"status {response.status_code}")
                data = b""
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_BYTES:
                        raise EgressAway("the answer is too large")
        except httpx.HTTPError as error:
            raise EgressAway(type(error).__name__) from None
        return _read(data)

    async def close(self) -> None:
        """Ends the connection."""
        await self._client.aclose()


def _read(data: bytes) -> Mapping[str, bool]:
    try:
        found: object = orjson.loads(data)
    except ValueError:
        raise EgressAway("the answer is no JSON") from None
    endpoints = cast("dict[str, object]", found).get("endpoints") if isinstance(found, dict) else None
    if not isinstance(endpoints, dict) or len(cast("dict[str, object]", endpoints)) > MAX_ENDPOINTS:
        raise EgressAway("the answer names no endpoints")
    return {name: standing == READY for name, standing in cast("dict[str, object]", endpoints).items()}
