"""The evidence of a certification: one JSON document, and an id that its content decides (reference: certification)."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from conformance.rules import RULES
from harness.adapter.v1 import descriptor_pb2

KIND = "harness.certification"
SCHEMA = 1
CONTRACT_VERSION = 1
_NOT_IN_ID = frozenset({"evidence_id", "started_at", "seconds"})
_NOT_IN_ID_OF_CASE = frozenset({"seconds", "figures"})


def canonical(value: Any) -> bytes:
    """Canonical JSON: keys sorted, no space, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def evidence_id(document: Mapping[str, Any]) -> str:
    """The id of a document, from everything but times and figures."""
    kept: dict[str, Any] = {name: value for name, value in document.items() if name not in _NOT_IN_ID}
    kept["cases"] = [
        {name: value for name, value in case.items() if name not in _NOT_IN_ID_OF_CASE} for case in document["cases"]
    ]
    return f"cert-{hashlib.sha256(canonical(kept)).hexdigest()[:32]}"


def descriptor_digest(descriptor: descriptor_pb2.Descriptor) -> str:
    """Digest of what an adapter says of itself, evidence aside."""
    bare = descriptor_pb2.Descriptor()
    bare.CopyFrom(descriptor)
    bare.evidence_id = ""
    for capability in bare.capabilities.values():
        capability.evidence_id = ""
    document = json_format.MessageToDict(bare, preserving_proto_field_name=True)
    return f"sha256:{hashlib.sha256(canonical(document)).hexdigest()}"


def cases_digest() -> str:
    """Digest of the rules, of the cases, and of the control plane that the kit plays."""
    digest = hashlib.sha256()
    for rule in RULES:
        digest.update(canonical([rule.id, rule.text, rule.capabilities, rule.placements, rule.either]))
    root = Path(__file__).parent
    for folder in ("cases", "plane", "drivers"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def kit_version() -> str:
    """Version of the package the kit came with; `0` from a source tree that is not installed."""
    try:
        return version("harness-mesh")
    except PackageNotFoundError:
        return "0"
