"""The sandboxes of the mesh on this machine, as its sandbox service tells them to whoever may read the mesh's secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import timestamp_pb2
from pydantic import SecretStr

from cli.errors import CommandError, ExitCode
from cli.mesh.layout import Layout
from cli.mesh.secrets import service_token_file
from cli.mesh.state_file import read_state
from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2, sandbox_service_pb2_grpc
from services.common.channels import connect
from services.common.errors import HarnessError

PAGE = 500
CALL_SECONDS = 10.0
SERVICE = "sandbox"


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Sandboxes, whether there are more, and what a strict one needs and this machine does not have."""

    sandboxes: list[dict[str, Any]]
    more: bool
    missing: list[str]


async def sandboxes_of(layout: Layout, *, ended: bool, limit: int) -> Sandboxes | None:
    """At most `limit` of those that live, or of those that ended, the last ended first; None: no mesh runs there. Raises CommandError."""
    state = read_state(layout.state_file)
    entry = next((each for each in state.processes if each.service == SERVICE), None) if state else None
    if entry is None:
        return None
    peer = connect(entry.address, _token(layout))
    stub = sandbox_service_pb2_grpc.SandboxServiceStub(peer.channel)
    found: list[dict[str, Any]] = []
    request = sandbox_service_pb2.ListSandboxesRequest(ended=ended, page_size=min(PAGE, limit))
    try:
        while True:
            page: sandbox_service_pb2.ListSandboxesResponse = await peer.call(
                stub.ListSandboxes, request, timeout=CALL_SECONDS
            )
            found.extend(_shown(lease) for lease in page.leases)
            request.page_token = page.next_page_token
            if not request.page_token or len(found) >= limit:
                break
    except HarnessError as error:
        raise CommandError(
            f"The sandbox service does not say which there are: {error.message}",
            ExitCode.UNREACHABLE,
            error.reason.value,
            "See `harness status`.",
        ) from None
    finally:
        await peer.close()
    return Sandboxes(found[:limit], bool(request.page_token) or len(found) > limit, list(page.missing))


def _token(layout: Layout) -> SecretStr:
    path = service_token_file(layout.secrets)
    try:
        return SecretStr(path.read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CommandError(
            f"{path} cannot be read: {reason}.",
            ExitCode.USAGE,
            "configuration",
            "Ask as the user that runs the mesh.",
        ) from None


def _shown(lease: lease_pb2.Lease) -> dict[str, Any]:
    live = lease.state in (lease_pb2.LEASE_STATE_PENDING, lease_pb2.LEASE_STATE_BOUND)
    return {
        "sandbox_id": lease.lease_id,
        "binding_id": lease.binding_id,
        "runtime_generation": lease.runtime_generation,
        "harness_id": lease.harness_id,
        "profile_id": lease.profile_id,
        "isolation": lease.isolation,
        "state": lease_pb2.LeaseState.Name(lease.state).removeprefix("LEASE_STATE_").lower(),
        "created_at": _time(lease.created_at),
        "ends_at" if live else "ended_at": _time(lease.expires_at),
        "reason": lease.reason,
    }


def _time(stamp: timestamp_pb2.Timestamp) -> str:
    return stamp.ToJsonString()
