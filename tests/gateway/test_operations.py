"""Routes and the reference, from the contracts."""

from typing import Any

import pytest
from google.api import annotations_pb2
from google.protobuf import descriptor_pb2, descriptor_pool

from harness.common.v1 import rest_pb2
from services.gateway.operations import PUBLIC_SERVICES, Router, public_operations
from services.gateway.reference import reference
from tests.gateway.conftest import ROOT


def test_the_reference_page_is_what_the_contracts_say() -> None:
    page = (ROOT / "docs" / "reference" / "rest.md").read_text()
    assert page == reference(), "run `python -m services.gateway.reference` to write docs/reference/rest.md anew"


def test_every_public_rpc_has_its_route() -> None:
    served = {f"{each.http_method} {each.template}" for each in public_operations()}
    assert served >= {
        "GET /api/v1/harnesses", "GET /api/v1/harnesses/{harness_id}/health", "POST /api/v1/agent-drafts/validate", "GET /api/v1/agents",
        "GET /api/v1/agents/{agent_id}", "GET /api/v1/agents/{agent_id}/versions", "GET /api/v1/agents/{agent_id}/versions/{version}",
        "PUT /api/v1/agents/{agent_id}", "DELETE /api/v1/agents/{agent_id}", "POST /api/v1/runs", "GET /api/v1/runs/{run_id}", "GET /api/v1/runs",
        "GET /api/v1/runs/{run_id}/events", "GET /api/v1/runs/{run_id}/events/stream", "DELETE /api/v1/runs/{run_id}", "POST /api/v1/runs/cancel-active",
        "POST /api/v1/sessions/clear", "POST /api/v1/invoke", "POST /api/v1/runs/{run_id}/resume",
        "GET /api/v1/conversations/{conversation_id}/interrupt-state",
        "POST /api/v1/files", "GET /api/v1/files", "GET /api/v1/files/{file_id}", "GET /api/v1/files/{file_id}/content", "DELETE /api/v1/files/{file_id}",
    }  # fmt: skip
    internal = {"ResolveFiles"}
    methods = {method.name for service in PUBLIC_SERVICES for method in service.methods}
    assert {each.name for each in public_operations()} == methods - internal


def _path(raw: bytes) -> tuple[dict[str, str], tuple[str, ...]] | None:
    match = Router(public_operations()).match(raw)
    return None if match is None else ({method: each.name for method, each in match.operations.items()}, match.values)


def test_routing_by_raw_path() -> None:
    assert _path(b"/api/v1/runs") == ({"POST": "StartRun", "GET": "ListRuns"}, ())
    assert _path(b"/api/v1/runs/cancel-active") == ({"POST": "CancelActiveRun"}, ())
    assert _path(b"/api/v1/runs/cancel-active/events") == ({"GET": "ListEvents"}, ("cancel-active",))
    assert _path(b"/api/v1/agents/a%2Fb/versions/2") == ({"GET": "GetAgentVersion"}, ("a/b", "2"))
    # An encoded literal is the literal; an encoded slash never separates.
    assert _path(b"/api/v1/%72uns") == _path(b"/api/v1/runs")
    assert _path(b"/api/v1%2Fruns") is None
    for nowhere in (
        b"",
        b"*",
        b"/",
        b"/api/v1/runs/",
        b"/api/v1/runs//events",
        b"/api/v1/runs/%ff",
        b"/API/v1/runs",
        b"/api/v1/runs/\xff",
    ):
        assert _path(nowhere) is None


def _service(name: str, **rule: object) -> None:
    """Adds a toy service with one rpc, and reads its operations."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"toy/{name}.proto",
        package=f"toy.{name}",
        syntax="proto3",
        dependency=["harness/run/v1/run_service.proto"],
    )
    method = file.service.add(name="ToyService").method.add(
        name="Get", input_type=".harness.run.v1.GetRunRequest", output_type=".harness.run.v1.GetRunResponse"
    )
    options: Any = method.options
    http = options.Extensions[annotations_pb2.http]
    for key, value in rule.items():
        setattr(http, key, value)
    options.Extensions[rest_pb2.rest].tag = "toy"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    Router(public_operations([pool.FindServiceByName(f"toy.{name}.ToyService")]))


def test_annotations_that_are_not_understood_are_refused() -> None:
    _service("good", get="/toy/{run_id}")
    for name, rule in {
        "field": {"get": "/toy/{nope}"},
        "wildcard": {"get": "/toy/**"},
        "verb": {"get": "/toy/{run_id}:cancel"},
        "body": {"post": "/toy", "body": "run_id"},
        "nested": {"get": "/toy/{run.id}"},
    }.items():
        with pytest.raises(ValueError, match="toy"):
            _service(name, **rule)
