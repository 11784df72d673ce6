"""The REST API as the command uses it: bounded answers, bounded waits, every refusal as a CommandError (REST API; I35)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import orjson

from cli.connection import Connection
from cli.errors import CommandError, ExitCode, Problem, problem_of
from cli.text import json_line

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
TRANSFER_SECONDS: Final = 3600.0
"""An upload or download may take that long at most; it is given up before where nothing moves for READ_SECONDS."""
STREAM_SILENCE_SECONDS: Final = 45.0
"""A stream says something every 15 seconds, so this long a silence means that it is broken."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
MAX_REFUSAL_BYTES: Final = 1024 * 1024
MAX_PROBLEMS: Final = 200
MAX_RETRY_AFTER_SECONDS: Final = 30.0
PAGE_SIZE: Final = 50

Parameters = Mapping[str, str | int]
_ABSENT_CODES: Final = frozenset({"unavailable", "store_unavailable", "deadline_exceeded"})


class Broken(Exception):
    """The connection failed or the answer is unusable; the same request may succeed on the next connection.

    `unconnected`: nothing was ever sent. `retry_after`: seconds the mesh asked to wait.
    """

    def __init__(self, reason: str, *, unconnected: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unconnected = unconnected
        self.retry_after = retry_after


class Api:
    """One mesh. Every method gives the `data` of the answer, or raises CommandError; `stream` raises Broken as well."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._client = httpx.AsyncClient(
            headers={
                "authorization": f"Bearer {connection.token}",
                "x-harness-engine-subject": connection.subject,
                "accept-encoding": "identity",
            },
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            # A proxy of the environment is for other machines, and a redirect would carry the token somewhere else.
            trust_env=not connection.is_loopback,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, parameters: Parameters | None = None) -> Any:
        return await self._request("GET", path, parameters=parameters)

    async def post(self, path: str, body: Any) -> Any:
        return await self._request("POST", path, body=body)

    async def put(self, path: str, body: Any) -> Any:
        return await self._request("PUT", path, body=body)

    async def delete(self, path: str) -> Any:
        return await self._request("DELETE", path)

    async def upload(
        self, path: str, parameters: Parameters, media_type: str, content: AsyncIterator[bytes], size: int | None
    ) -> Any:
        """Sends content as it is. `size` None: not known. Raises Broken as well, when another attempt may do."""
        headers = {"content-type": media_type} | ({} if size is None else {"content-length": str(size)})
        return await self._answered(self._exchange("POST", path, parameters, content, headers), TRANSFER_SECONDS)

    @contextlib.asynccontextmanager
    async def content(self, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Content as it is. Raises Broken as well, when another attempt may do."""
        try:
            async with asyncio.timeout(TRANSFER_SECONDS), self._client.stream("GET", self._url(path)) as answer:
                if answer.status_code != 200:
                    raise refusal(answer.status_code, await _read(answer, MAX_REFUSAL_BYTES), self.connection.url)
                yield answer.aiter_raw()
        except httpx.HTTPError as error:
            raise _broken(error) from None
        except TimeoutError:
            raise unreachable(self.connection.url, f"no end within {TRANSFER_SECONDS:g} seconds") from None

    async def items(
        self, path: str, name: str, limit: int, parameters: Parameters | None = None
    ) -> tuple[list[Any], bool]:
        """At most `limit` items of a paged list, and whether there are more."""
        items: list[Any] = []
        token = ""
        while True:
            size = min(PAGE_SIZE, limit - len(items))
            page: Parameters = {**(parameters or {}), "page_size": size} | ({"page_token": token} if token else {})
            data = await self.get(path, page)
            items += data[name][:size]
            token = data["next_page_token"]
            if not token or len(items) >= limit:
                return items, bool(token)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Parameters, last_event_id: int
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The bytes of an event stream. Raises CommandError when it is refused for good, Broken when another attempt may do."""
        headers = {"accept": "text/event-stream"} | ({"last-event-id": str(last_event_id)} if last_event_id else {})
        timeout = httpx.Timeout(STREAM_SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with self._client.stream(
                "GET", self._url(path), params=parameters, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    refused = refusal(answer.status_code, await _read(answer, MAX_REFUSAL_BYTES), self.connection.url)
                    if answer.status_code in (429, 502, 503, 504):
                        raise Broken(refused.message, retry_after=_retry_after(answer))
                    raise refused
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise _no_mesh(self.connection.url)
                yield answer.aiter_raw()
        except httpx.HTTPError as error:
            raise _broken(error) from None

    async def _request(self, method: str, path: str, *, parameters: Parameters | None = None, body: Any = None) -> Any:
        content = None if body is None else json_line(body).encode("utf-8")
        headers = {} if content is None else {"content-type": "application/json"}
        return await self._answered(self._exchange(method, path, parameters, content, headers), ANSWER_SECONDS)

    async def _answered(self, exchange: Awaitable[tuple[int, bytes]], seconds: float) -> Any:
        """The `data` of what comes back."""
        try:
            async with asyncio.timeout(seconds):
                status, data = await exchange
        except TimeoutError:
            raise unreachable(self.connection.url, f"no answer within {seconds:g} seconds") from None
        except Broken as broken:
            if broken.unconnected:
                raise unreachable(self.connection.url, broken.reason) from None
            raise
        if status >= 400 or status < 200:
            raise refusal(status, data, self.connection.url)
        answer = _json(data)
        if status >= 300 or not isinstance(answer, dict) or answer.get("success") is not True or "data" not in answer:
            raise _no_mesh(self.connection.url)
        return answer["data"]

    async def _exchange(
        self,
        method: str,
        path: str,
        parameters: Parameters | None,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        try:
            async with self._client.stream(
                method, self._url(path), params=parameters, content=content, headers=headers
            ) as answer:
                return answer.status_code, await _read(answer, MAX_ANSWER_BYTES)
        except httpx.HTTPError as error:
            raise _broken(error) from None

    def _url(self, path: str) -> str:
        return f"{self.connection.url}{path}"


def segment(value: str) -> str:
    """A value as one segment of a path."""
    return quote(value, safe="")


def refusal(status: int, body: bytes, url: str) -> CommandError:
    """What the mesh refused, with every field problem it named."""
    answer = _json(body)
    if not isinstance(answer, dict) or answer.get("success") is not False:
        return _no_mesh(url, status)
    code, message = str(answer.get("code", "")), str(answer.get("error", "")) or f"HTTP status {status}"
    problems: list[Problem] = []
    facts: dict[str, str | int] = {}
    details = answer.get("details")
    for detail in details[:MAX_PROBLEMS] if isinstance(details, list) else ():
        if not isinstance(detail, dict):
            continue
        more = {key: value for key, value in detail.items() if key not in ("path", "code", "message")}
        facts.update({str(key): value for key, value in more.items() if isinstance(value, str | int)})
        if not more:
            problems.append(problem_of(detail))
    return CommandError(message, _exit_code(status, code), code, _hint(status, code, facts), problems, facts)


def unreachable(url: str, reason: str) -> CommandError:
    """There is no mesh at `url`, or it does not answer."""
    return CommandError(
        f"The mesh at {url} cannot be reached: {reason}.",
        ExitCode.UNREACHABLE,
        "unreachable",
        _elsewhere(url) or "Start one with `harness up`, or set HARNESS_URL to where it is.",
    )


def _exit_code(status: int, code: str) -> ExitCode:
    if code in _ABSENT_CODES:
        return ExitCode.UNREACHABLE
    return {
        401: ExitCode.USAGE,
        404: ExitCode.NOT_FOUND,
        409: ExitCode.CONFLICT,
    }.get(status, ExitCode.FAILED)


def _hint(status: int, code: str, facts: Mapping[str, str | int]) -> str:
    if status == 401:
        return "Check HARNESS_TOKEN and HARNESS_SUBJECT."
    if status == 404:
        return (
            "Check the id with `harness agents list`, `harness runs list` or `harness files list`. "
            "Runs, conversations and files of another subject than HARNESS_SUBJECT are not found."
        )
    if code == "harness_session_conflict" and "run_id" in facts:
        run_id = facts["run_id"]
        return (
            f"Run {run_id} is active: watch it with `harness runs watch {run_id}`, cancel it with `harness runs cancel {run_id}`, "
            "or give --on-conflict enqueue or interrupt."
        )
    if code == "interrupt_pending" and "run_id" in facts:
        return f"Decide with `harness runs resume {facts['run_id']}`, dismiss it with `--dismiss` there, or give --on-conflict interrupt."
    if code == "revision_conflict" and "revision" in facts:
        return "Look at what is asked now: resume again without --decision."
    if code == "revision_conflict":
        return "Somebody saved the agent at the same time: look at it with `harness agents show`, then apply again."
    if code == "harness_disabled":
        return "Enable the agent by applying it again."
    if code == "internal" and "incident_id" in facts:
        return f"The operator finds it in the logs as incident {facts['incident_id']}."
    if code in ("capacity", "rate_limited") or code in _ABSENT_CODES:
        return "Try again in a moment."
    return ""


def _no_mesh(url: str, status: int = 0) -> CommandError:
    answered = f" (HTTP status {status})" if status else ""
    return CommandError(
        f"What answers at {url} is not a gateway of the mesh{answered}.",
        ExitCode.UNREACHABLE,
        "not_a_mesh",
        _elsewhere(url) or "Check HARNESS_URL.",
    )


def _elsewhere(url: str) -> str:
    """What to do where the mesh of this folder is at another place than the one that was asked."""
    from cli.mesh.whereabouts import url_of_running_mesh

    running = url_of_running_mesh()
    return f"The mesh of this folder is at {running}: set HARNESS_URL to that." if running not in ("", url) else ""


def _broken(error: httpx.HTTPError) -> Broken:
    if isinstance(error, httpx.ConnectTimeout):
        return Broken(f"no connection within {CONNECT_SECONDS:g} seconds", unconnected=True)
    if isinstance(error, httpx.ConnectError):
        return Broken(str(error) or "no connection", unconnected=True)
    if isinstance(error, httpx.TimeoutException):
        return Broken("nothing came for too long")
    return Broken("the connection broke off")


async def _read(answer: httpx.Response, limit: int) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        # Unpacking what was not asked for has no bound.
        raise Broken("the answer is compressed, which was not asked for")
    parts = bytearray()
    async for part in answer.aiter_raw():
        parts += part
        if len(parts) > limit:
            raise CommandError(
                f"The answer is larger than {limit // (1024 * 1024)} MiB.",
                ExitCode.FAILED,
                "answer_too_large",
                "Ask for less, with --limit.",
            )
    return bytes(parts)


def _retry_after(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), MAX_RETRY_AFTER_SECONDS) if text.isascii() and text.isdigit() else 0.0


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
