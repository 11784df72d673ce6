"""HTTP GET within an allow-list: connects to the address that was checked, and to nothing else (SSRF; see `addresses`).

Bounded in redirects, time and size; texts and JSON alone. No cookie, no credential, no proxy, no compressed body travels.
"""

from __future__ import annotations

import asyncio
import codecs
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urljoin

import httpx

from services.runs.tools.arguments import as_json
from services.runs.tools.providers.addresses import AllowList, NotAllowed, Target
from services.runs.tools.providers.port import ProviderCall, ProviderFailed
from services.runs.tools.record import Ended, Outcome

MAX_REDIRECTS: Final = 3
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_ADDRESSES: Final = 16
_TEXTS: Final = ("text/", "application/json", "application/xml", "application/xhtml+xml")
_CHARSETS: Final = (
    "utf-8", "ascii", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "gb18030", "gbk", "gb2312", "big5", "big5hkscs", "shift_jis",
    "cp932", "euc_jp", "iso2022_jp", "euc_kr", "cp949", "koi8-r", "koi8-u", "mac-roman", "cp437", "cp850", "cp866", "cp874",
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in range(1, 17) if number != 12),
)  # fmt: skip
_TEXT_CODECS: Final = frozenset(codecs.lookup(name).name for name in _CHARSETS)
"""Those of pages. Python has others: some take minutes for a page of their choice, some make texts that no JSON can hold."""
_HEADERS: Final = {
    "accept": "text/*, application/json, application/xml;q=0.9",
    "accept-encoding": "identity",
    "user-agent": "harness-mesh",
}

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host."""


class HttpGet:
    """The tool. `resolve` finds a host's addresses; each is checked before any of them is connected to."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = resolve or _system_resolve
        self._tls: ssl.SSLContext | None = None

    async def invoke(self, call: ProviderCall) -> Ended:
        """See `ToolProvider`."""
        try:
            allowed = AllowList.of(call.settings)
            target = allowed.target(str(call.arguments["url"]))
            for hop in range(MAX_REDIRECTS + 1):
                address = await self._address(allowed, target, asked_before=hop > 0)
                found = await self._get(address, target, call)
                if isinstance(found, Ended):
                    return found
                # Every hop is held to what the first was held to.
                following = allowed.target(found)
                if target.scheme == "https" and following.scheme != "https":
                    raise NotAllowed("The page redirects from https to http.")
                target = following
        except NotAllowed as problem:
            return Ended.failed("url_not_allowed", str(problem))
        return Ended.failed("too_many_redirects", f"More than {MAX_REDIRECTS} redirects.")

    async def _get(self, address: str, target: Target, call: ProviderCall) -> Ended | str:
        """The page, or where it redirects to."""
        host = f"[{address}]" if ":" in address else address
        url = f"{target.scheme}://{host}:{target.port}{target.path}"
        timeout = httpx.Timeout(call.timeout_seconds)
        try:
            # Connected by address, known by name: what was checked is what is reached, whatever the name resolves to by now.
            async with (
                httpx.AsyncClient(verify=self._context(), trust_env=False, timeout=timeout) as client,
                client.stream(
                    "GET",
                    url,
                    headers={**_HEADERS, "host": target.authority},
                    extensions={"sni_hostname": target.host},
                ) as response,
            ):
                if response.status_code in REDIRECTS and "location" in response.headers:
                    origin = f"{target.scheme}://{target.authority}{target.path}"
                    return urljoin(origin, response.headers["location"])
                return await _read(response, call.max_result_bytes)
        except (httpx.InvalidURL, ValueError):
            raise NotAllowed("The URL cannot be read.") from None
        except httpx.HTTPError as error:
            raise ProviderFailed(
                "http_failed", f"The page could not be fetched ({type(error).__name__}).", passing=True, reached=True
            ) from None

    async def _address(self, allowed: AllowList, target: Target, *, asked_before: bool) -> str:
        try:
            found = await self._resolve(target.host, target.port)
        except OSError:
            raise ProviderFailed(
                "host_not_found", "The host's address could not be found.", passing=True, reached=asked_before
            ) from None
        # One that may not be reached spoils all: a name of which half is inside is somebody's try.
        admitted = [allowed.check_address(text) for text in found[:MAX_ADDRESSES]]
        if not admitted:
            raise NotAllowed("The host has no address.")
        return admitted[0]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


async def _read(response: httpx.Response, limit: int) -> Ended:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind.startswith(_TEXTS) or kind.endswith(("+json", "+xml"))):
        return Ended.failed("not_text", "The page is neither text nor JSON.")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return Ended.failed("not_text", "The page came compressed, though it was asked not to.")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:  # I35: no more is read
            return Ended.failed("result_too_large", f"The page has more than {limit} bytes.")
    text = _decoded(bytes(body), response.charset_encoding)
    return Ended(Outcome.SUCCESS, as_json({"status": response.status_code, "content_type": kind, "text": text}))


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        named = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        named = ""
    return body.decode(named if named in _TEXT_CODECS else "utf-8", "replace")


async def _system_resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
