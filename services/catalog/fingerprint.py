"""The fingerprint of a blueprint: the same intent has the same one, however it was written (I17)."""

from __future__ import annotations

from harness.common.v1.blueprint_pb2 import AgentBlueprint
from services.catalog.canonical import digest, message_document


def config_fingerprint(normalized: AgentBlueprint) -> str:
    """`sha256:` and 64 hex digits over the canonical JSON of a blueprint with all defaults written out."""
    return "sha256:" + digest(message_document(normalized))
