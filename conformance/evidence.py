"""The evidence of a certification: one JSON document, and an id that its content decides (reference: certification)."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from conformance.capability_keys import CAPABILITY_KEYS
from harness.adapter.v1 import descriptor_pb2

KIND = "harness.certification"
SCHEMA = 1
CONTRACT_VERSION = 1
# How a report is shown, and who runs the cases: the page of rules, JUnit XML, the plugin of pytest.
_DECIDES_NOTHING = frozenset({"rule_page.py", "junit.py", "plugin.py", "suite.py"})
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
    """Digest of what decides of that which an adapter says of itself (reference: certification, Evidence): texts for people and evidence do not."""
    deciding = {
        "capabilities": {
            key: {
                "level": int(descriptor.capabilities[key].level),
                "constraints": json_format.MessageToDict(descriptor.capabilities[key].constraints),
            }
            for key in CAPABILITY_KEYS
            # Levels 1 and 2, native and emulated: what is not claimed is left out, whether it is stated or not.
            if key in descriptor.capabilities and descriptor.capabilities[key].level in (1, 2)
        },
        "options_schema": json_format.MessageToDict(descriptor.options_schema),
        "placements": sorted(int(each) for each in descriptor.placements),
        "session_id_style": int(descriptor.session_id_style),
        "thread_state_strategy": int(descriptor.thread_state_strategy),
        "trust_boundary": int(descriptor.trust_boundary),
    }
    return f"sha256:{hashlib.sha256(canonical(deciding)).hexdigest()}"


def cases_digest(driver: Path | None = None) -> str:
    """Digest of everything that decides about a target: the package but for how it is shown and driven, and the file of an author's own `driver`."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in _DECIDES_NOTHING:
            digest.update(canonical([name, path.read_text(encoding="utf-8")]))
    if driver is not None:
        digest.update(canonical(["driver", driver.read_text(encoding="utf-8")]))
    return f"sha256:{digest.hexdigest()}"


def kit_version() -> str:
    """Version of the package the kit came with; `0` from a source tree that is not installed."""
    try:
        return version("harness-mesh")
    except PackageNotFoundError:
        return "0"
