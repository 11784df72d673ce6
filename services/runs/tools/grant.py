"""What the catalog grants an agent's version, and what follows from it for one call (design 0003; I25). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from harness.catalog.v1 import resolution_service_pb2
from harness.common.v1 import blueprint_pb2
from services.common.errors import HarnessError, Reason

DEFAULT_MAX_TOOL_CALLS: Final = 50
_MARK_BYTES: Final = 6

Grant = resolution_service_pb2.ToolGrant


def marks_of(grants: Iterable[Grant]) -> tuple[str, ...]:
    """The tools as a token names them: short, whatever their ids, for a token has a bound (I35)."""
    return tuple(mark_of(grant.descriptor.tool_id) for grant in grants)


def mark_of(tool_id: str) -> str:
    """One tool as a token names it."""
    return hashlib.blake2b(tool_id.encode(), digest_size=_MARK_BYTES).hexdigest()


def granted(grants: Iterable[Grant], allowed: Sequence[str]) -> list[Grant]:
    """The grants that the token names too: what was bound when the run was issued and still is."""
    return [grant for grant in grants if mark_of(grant.descriptor.tool_id) in allowed]


def grant_of(grants: Iterable[Grant], allowed: Sequence[str], tool_id: str) -> Grant:
    """The grant for a tool. Errors: `permission_denied`, the same for a tool that is not there and one that is not the agent's."""
    for grant in granted(grants, allowed):
        if grant.descriptor.tool_id == tool_id:
            return grant
    raise HarnessError(Reason.PERMISSION_DENIED, "The agent has no such tool.")


def needs_approval(grant: Grant) -> bool:
    """Whether a person decides before the tool is called. What nobody has decided asks a person."""
    match grant.approval_policy:
        case blueprint_pb2.APPROVAL_POLICY_NEVER:
            return False
        case blueprint_pb2.APPROVAL_POLICY_ALWAYS:
            return True
        case _:
            return grant.descriptor.sensitive


def tries_of(grant: Grant) -> int:
    """Tries of one call: only an idempotent tool is tried twice (I11)."""
    return max(1, grant.max_attempts) if grant.descriptor.idempotent else 1


def max_tool_calls(limits: blueprint_pb2.LimitsSpec) -> int:
    """Tool calls of a run, at most."""
    return limits.max_tool_calls if limits.HasField("max_tool_calls") else DEFAULT_MAX_TOOL_CALLS
