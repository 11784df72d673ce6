"""A stand-in for the gateway: the part of the REST API the command uses, over real HTTP on a loopback port, with streams that break as told.

The command is tested as a process against it, because a real mesh does not break off a stream at a chosen byte. The end-to-end
tests use the real mesh.
"""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

TIME = "2024-01-01T00:00:00Z"
BREAK = b"<break>"
"""As a step of a stream: the connection is torn."""
HOLD = b"<hold>"
"""As a step of a stream: nothing more comes until the client goes away."""


@dataclass
class Seen:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class StandIn:
    """What it answers, and what it was asked. `streams[run_id]` holds one list of steps for every connection; the last is used again and again."""

    url: str = ""
    agents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    enabled: dict[str, bool] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: dict[str, list[list[bytes]]] = field(default_factory=dict)
    stream_refusals: list[Response] = field(default_factory=list)
    starts_torn: int = 0
    uploads_torn: int = 0
    files: dict[str, tuple[str, bytes, bytes]] = field(default_factory=dict)
    """Name, content, and what comes when it is downloaded."""
    answers: dict[str, Response] = field(default_factory=dict)
    issues: list[dict[str, str]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    interrupt: dict[str, Any] | None = None
    """What its conversation waits for."""

    def add_run(self, run_id: str, events: list[tuple[str, dict[str, Any]]], **more: Any) -> None:
        """A run with these events; it ended if the last one is a terminal."""
        ended = {
            "run.completed": "completed",
            "run.failed": "failed",
            "run.cancelled": "cancelled",
            "run.interrupted": "interrupted",
        }
        status = ended.get(events[-1][0], "running") if events else "running"
        self.runs[run_id] = run_json(run_id, status=status, last_sequence=len(events), **more)
        self.streams[run_id] = [frames(events)]

    def cursors(self) -> list[int]:
        """Where each connection to a stream began."""
        streams = [seen for seen in self.seen if seen.path.endswith("/events/stream")]
        return [int(seen.headers.get("last-event-id", "0")) for seen in streams]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/v1/agents", self._agents),
                Route("/api/v1/agents/{agent_id}", self._agent, methods=["GET", "PUT", "DELETE"]),
                Route("/api/v1/agent-drafts/validate", self._validate, methods=["POST"]),
                Route("/api/v1/files", self._files, methods=["GET", "POST"]),
                Route("/api/v1/files/{file_id}", self._file),
                Route("/api/v1/files/{file_id}/content", self._content),
                Route("/api/v1/runs", self._runs, methods=["GET", "POST"]),
                Route("/api/v1/runs/{run_id}", self._run, methods=["GET", "DELETE"]),
                Route("/api/v1/runs/{run_id}/events/stream", self._stream),
                Route("/api/v1/runs/{run_id}/resume", self._resume, methods=["POST"]),
                Route("/api/v1/conversations/{conversation_id}/interrupt-state", self._interrupt_state),
                Route("/api/v1/harnesses", self._harnesses),
                Route("/api/v1/harnesses/{harness_id}/health", self._health),
                Route("/api/v1/sessions/clear", self._clear, methods=["POST"]),
            ]
        )

    async def _record(self, request: Request) -> Any:
        data = await request.body()
        body = json.loads(data) if data else None
        self.seen.append(
            Seen(request.method, request.url.path, dict(request.query_params), dict(request.headers), body)
        )
        return body

    async def _agents(self, request: Request) -> Response:
        await self._record(request)
        if "agents" in self.answers:
            return self.answers["agents"]
        names = sorted(self.agents)
        start, size = int(request.query_params.get("page_token", "0")), int(request.query_params["page_size"])
        page = [self._agent_json(name)["record"] for name in names[start : start + size]]
        end = start + len(page)
        return success({"agents": page, "next_page_token": str(end) if end < len(names) else ""})

    def _agent_json(self, agent_id: str) -> dict[str, Any]:
        versions = self.agents[agent_id]
        number = len(versions)
        return {
            "record": {
                "agent_id": agent_id, "current_version": number, "revision": number, "enabled": self.enabled[agent_id],
                "name": "A", "harness_id": "reference", "created_at": TIME, "updated_at": TIME,
            },
            "version": {
                "agent_id": agent_id, "version": number, "blueprint": versions[-1], "config_fingerprint": "f", "catalog_revision": "c",
                "created_at": TIME,
            },
        }  # fmt: skip

    async def _agent(self, request: Request) -> Response:
        body = await self._record(request)
        agent_id = request.path_params["agent_id"]
        known = self.agents.get(agent_id)
        if request.method == "PUT":
            if self.issues:
                return failure(422, "invalid_request", "The request has invalid fields.", self.issues[:1])
            if body["expected_revision"] != len(known or ()):
                return failure(409, "revision_conflict", "The agent was changed.")
            if not known or known[-1] != body["blueprint"]:
                self.agents.setdefault(agent_id, []).append(body["blueprint"])
            self.enabled[agent_id] = True
        elif known is None:
            return failure(404, "not_found", "No such agent.")
        elif request.method == "DELETE":
            self.enabled[agent_id] = False
            return success(self._agent_json(agent_id)["record"])
        return success(self._agent_json(agent_id))

    async def _validate(self, request: Request) -> Response:
        body = await self._record(request)
        report = {
            "valid": not self.issues, "catalog_revision": "c", "config_fingerprint": "f", "normalized_blueprint": body["blueprint"],
            "issues": self.issues, "capabilities": {},
        }  # fmt: skip
        return success(report)

    async def _runs(self, request: Request) -> Response:
        body = await self._record(request)
        if request.method == "GET":
            return success({"runs": list(self.runs.values()), "next_page_token": ""})
        if "start" in self.answers:
            return self.answers["start"]
        if self.starts_torn:
            self.starts_torn -= 1
            return torn()
        (run,) = self.runs.values()
        run["conversation_id"] = body["conversation_id"]
        return success(run, 202)

    async def _run(self, request: Request) -> Response:
        await self._record(request)
        run = self.runs.get(request.path_params["run_id"])
        if run is None:
            return failure(404, "not_found", "No such run.")
        if request.method == "DELETE":
            run["status"] = "cancelled"
        return success(run)

    async def _resume(self, request: Request) -> Response:
        await self._record(request)
        if "resume" in self.answers:
            return self.answers["resume"]
        run_id = request.path_params["run_id"]
        return success(next(run for run in self.runs.values() if run["resumed_from"] == run_id), 202)

    async def _interrupt_state(self, request: Request) -> Response:
        await self._record(request)
        return success(self.interrupt)

    async def _stream(self, request: Request) -> Response:
        await self._record(request)
        run_id = request.path_params["run_id"]
        if run_id not in self.runs:
            return failure(404, "not_found", "No such run.")
        if self.stream_refusals:
            return self.stream_refusals.pop(0)
        connections = self.streams[run_id]
        steps = connections.pop(0) if len(connections) > 1 else connections[0]
        after = int(request.headers.get("last-event-id", request.query_params.get("after", "0")))
        return StreamingResponse(self._play(steps, after), media_type="text/event-stream")

    async def _play(self, steps: list[bytes], after: int) -> AsyncIterator[bytes]:
        for step in steps:
            if step == BREAK:
                raise Torn
            if step == HOLD:
                self.held.set()
                await asyncio.Event().wait()
            number = step.partition(b"id: ")[2].partition(b"\n")[0]
            # What is not just a frame is sent as it is told.
            if not (step.startswith(b"id: ") and number.isdigit() and int(number) <= after):
                yield step

    async def _files(self, request: Request) -> Response:
        query, headers = dict(request.query_params), dict(request.headers)
        body = await request.body()
        self.seen.append(Seen(request.method, request.url.path, query, headers, body))
        if "files" in self.answers:
            return self.answers["files"]
        if self.uploads_torn:
            self.uploads_torn -= 1
            return torn()
        return success(file_json("fil_1", query["name"], body), 201)

    async def _file(self, request: Request) -> Response:
        await self._record(request)
        file_id = request.path_params["file_id"]
        name, content, _ = self.files[file_id]
        return success(file_json(file_id, name, content))

    async def _content(self, request: Request) -> Response:
        await self._record(request)
        _, content, come = self.files[request.path_params["file_id"]]

        async def pieces() -> AsyncIterator[bytes]:
            yield come
            if len(come) < len(content):
                raise Torn

        return StreamingResponse(pieces(), media_type="text/plain")

    async def _harnesses(self, request: Request) -> Response:
        await self._record(request)
        return self.answers["harnesses"]

    async def _health(self, request: Request) -> Response:
        await self._record(request)
        return self.answers["health"]

    async def _clear(self, request: Request) -> Response:
        await self._record(request)
        return success({"cleared": True, "closed_binding_id": "bnd_1", "next_epoch": 2})


class Torn(Exception):
    """Ends a connection in the middle of its answer."""


def torn() -> Response:
    """An answer that breaks off."""

    async def nothing() -> AsyncIterator[bytes]:
        yield b'{"success":'
        raise Torn

    return StreamingResponse(nothing(), 202, media_type="application/json")


def run_json(run_id: str, **more: Any) -> dict[str, Any]:
    return {
        "run_id": run_id, "agent_id": "a", "conversation_id": "c", "agent_version": 1, "binding_id": "bnd_1", "harness_id": "reference",
        "profile_id": "default", "status": "running", "last_sequence": 0, "client_request_id": "", "error_code": "", "created_at": TIME,
        "updated_at": TIME, "deadline_at": None, "resumed_from": "", **more,
    }  # fmt: skip


def file_json(file_id: str, name: str, content: bytes) -> dict[str, Any]:
    return {
        "file_id": file_id, "name": name, "media_type": "text/plain", "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(), "created_at": TIME, "expires_at": TIME,
    }  # fmt: skip


def frames(events: list[tuple[str, dict[str, Any]]], first: int = 1) -> list[bytes]:
    """Each event as a frame."""
    return [
        f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
        for number, (kind, data) in enumerate(events, first)
    ]


def success(data: Any, status: int = 200) -> Response:
    return JSONResponse({"success": True, "data": data}, status)


def failure(status: int, code: str, error: str, details: Any = (), **headers: str) -> Response:
    body = {"success": False, "error": error, "code": code, "details": list(details)}
    return JSONResponse(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def plain(text: str, status: int = 200) -> Response:
    return PlainTextResponse(text, status)


@asynccontextmanager
async def serving(stand_in: StandIn) -> AsyncGenerator[StandIn]:
    """Serves it on a free port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    stand_in.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        stand_in.app(), log_config=None, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined] - only old versions have it
    # `serve` would take over this process's signals.
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield stand_in
    finally:
        server.should_exit = True
        await task
        listener.close()
