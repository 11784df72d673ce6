"""Liveness, readiness, metrics and documents: no credential, nothing sensitive (REST API)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from harness.catalog.v1 import harness_pb2, harness_service_pb2
from services.common import metrics as process_metrics
from services.common.errors import HarnessError, Reason
from services.gateway.codec.names import short_names
from services.gateway.envelope import Reply, failure, success
from services.gateway.openapi import document, page
from services.gateway.operations import Operation
from services.gateway.upstream import Upstream

CACHE_SECONDS = 1.0
NEEDED = ("catalog", "runs")
"""Without one of them this gateway serves nobody. Without sessions, runs that go on are watched and cancelled as ever."""
SUBJECT = "gateway-readiness"
_LIST_HARNESSES = "harness.catalog.v1.HarnessService/ListHarnesses"


class Operational:
    """The operational pages."""

    def __init__(self, upstream: Upstream, operations: tuple[Operation, ...], stopping: asyncio.Event) -> None:
        self._upstream = upstream
        self._stopping = stopping
        self._list_harnesses = next(each for each in operations if each.rpc == _LIST_HARNESSES)
        self._openapi = orjson.dumps(document(operations), option=orjson.OPT_INDENT_2)
        self._docs = page(operations).encode("utf-8")
        self._checked_at = -CACHE_SECONDS
        self._state: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    def pages(self) -> dict[str, Callable[[], Awaitable[Reply]]]:
        """Path to answer."""
        return {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi_json,
            "/docs": self._docs_page,
        }

    async def _healthz(self) -> Reply:
        return success(b'{"status":"ok"}')

    async def _metrics(self) -> Reply:
        return Reply(200, process_metrics.render(), process_metrics.CONTENT_TYPE.encode("ascii"))

    async def _openapi_json(self) -> Reply:
        return Reply(200, self._openapi)

    async def _docs_page(self) -> Reply:
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        return Reply(200, self._docs, b"text/html; charset=utf-8", ((b"content-security-policy", policy),))

    async def _readyz(self) -> Reply:
        """Ready when catalog and runs are; sessions, or a harness, that is away is shown and changes nothing (I23)."""
        state = await self._fresh_state()
        if self._stopping.is_set():
            state = {**state, "ready": False, "stopping": True}
        if state["ready"]:
            return success(orjson.dumps(state))
        reply = failure(HarnessError(Reason.UNAVAILABLE, "Not ready.", retry_after=1.0))
        return reply._replace(body=orjson.dumps({**orjson.loads(reply.body), "data": state}))

    async def _fresh_state(self) -> dict[str, Any]:
        # One look at a time, kept for a moment: probes cost the services nothing, however many come.
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._checked_at >= CACHE_SECONDS:
                self._state = await self._look()
                self._checked_at = asyncio.get_running_loop().time()
            return self._state

    async def _look(self) -> dict[str, Any]:
        areas = self._upstream.areas
        *serving, harnesses = await asyncio.gather(*(self._is_serving(area) for area in areas), self._harnesses())
        services = {area: "ready" if ok else "unavailable" for area, ok in zip(areas, serving, strict=True)}
        ready = all(services[area] == "ready" for area in NEEDED)
        return {"ready": ready, "services": services, "harnesses": harnesses}

    async def _is_serving(self, area: str) -> bool:
        try:
            return await self._upstream.is_serving(area)
        except HarnessError:
            return False

    async def _harnesses(self) -> dict[str, str | None]:
        try:
            answer = await self._upstream.call(
                self._list_harnesses, harness_service_pb2.ListHarnessesRequest(), SUBJECT, timeout=2.0
            )
        except HarnessError:
            return {}
        names = short_names(harness_pb2.Availability.DESCRIPTOR)
        return {each.harness_id: names.get(each.availability) for each in answer.harnesses}
