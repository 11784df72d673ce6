"""Kept documents and verdicts as messages of the contract."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, timestamp_pb2

from harness.catalog.v1 import agent_pb2 as pb
from harness.common.v1.blueprint_pb2 import AgentBlueprint
from harness.common.v1.error_pb2 import Issue
from services.catalog.validation import Verdict

Document = dict[str, Any]


def record_message(agent: Document) -> pb.AgentRecord:
    """An agent's pointer."""
    return pb.AgentRecord(
        agent_id=agent["agent_id"],
        current_version=agent["current_version"],
        revision=agent["rev"],
        enabled=agent["enabled"],
        name=agent["name"],
        harness_id=agent["harness_id"],
        created_at=_timestamp(agent["created_at"]),
        updated_at=_timestamp(agent["updated_at"]),
    )


def version_message(version: Document) -> pb.AgentVersion:
    """A version with its blueprint."""
    return pb.AgentVersion(
        agent_id=version["agent_id"],
        version=version["version"],
        # A blueprint kept by a newer release may have fields this one does not know.
        blueprint=json_format.ParseDict(version["blueprint"], AgentBlueprint(), ignore_unknown_fields=True),
        config_fingerprint=version["config_fingerprint"],
        catalog_revision=version["catalog_revision"],
        created_at=_timestamp(version["created_at"]),
    )


def report_message(verdict: Verdict) -> pb.ValidationReport:
    """A verdict as the report clients see."""
    return pb.ValidationReport(
        valid=verdict.valid,
        catalog_revision=verdict.catalog_revision,
        config_fingerprint=verdict.fingerprint,
        normalized_blueprint=verdict.normalized,
        issues=[
            Issue(path=issue.path[:512], code=issue.code[:64], message=issue.message[:1000]) for issue in verdict.issues
        ],
        capabilities=verdict.capabilities,
    )


def _timestamp(milliseconds: int) -> timestamp_pb2.Timestamp:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromMilliseconds(milliseconds)
    return timestamp
