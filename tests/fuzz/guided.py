"""`python -m tests.fuzz.guided NAME [options of libFuzzer]`: bytes, guided by coverage, where atheris is installed (it is no dependency of the project)."""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import protovalidate
from google.protobuf import json_format
from google.rpc import status_pb2

from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.common.v1.blueprint_pb2 import AgentBlueprint
from harness.event.v1 import event_pb2
from tests.fuzz.messages import parsed


def _descriptor(data: bytes) -> None:
    from services.catalog.descriptor_policy import DescriptorRefused, admit

    said = parsed(Descriptor, data)
    if said is not None and not protovalidate.collect_violations(said):
        try:
            admit(said.harness_id, said)
        except DescriptorRefused:
            return


def _draft(data: bytes) -> None:
    from services.catalog.validation import judge
    from tests.catalog.test_validation import CATALOG

    draft = parsed(AgentBlueprint, data)
    if draft is not None:
        judge(draft, CATALOG)


def _events(data: bytes) -> None:
    from adapters.sdk.lifecycle import ProtocolViolation, RunLifecycle

    batch = parsed(event_pb2.EventBatch, data)
    machine = RunLifecycle()
    for draft in batch.drafts if batch is not None else ():
        try:
            machine.accept(draft)
        except ProtocolViolation:
            return


def _evidence(data: bytes) -> None:
    from services.catalog.evidence import EvidenceRefused, read_evidence

    try:
        read_evidence(data)
    except EvidenceRefused:
        return


def _status(data: bytes) -> None:
    from services.common.status import from_status
    from services.gateway.envelope import failure

    status = parsed(status_pb2.Status, data)
    if status is not None:
        failure(from_status(status))


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "descriptor": _descriptor,
    "draft": _draft,
    "events": _events,
    "evidence": _evidence,
    "status": _status,
}


def _seeds() -> dict[str, bytes]:
    """Something good of each kind, to start from."""
    from adapters.sdk import events
    from services.common.errors import HarnessError, Reason
    from services.common.status import to_status
    from tests.catalog.processes import blueprint, message
    from tests.catalog.test_evidence import report
    from tests.catalog.toy_adapter import descriptor

    drafts = [events.text("x"), events.tool_started("c1", "t"), events.tool_succeeded("c1"), events.completed()]
    return {
        "descriptor": json_format.ParseDict(descriptor(), Descriptor()).SerializeToString(),
        "draft": message(blueprint()).SerializeToString(),
        "events": event_pb2.EventBatch(first_offset=1, drafts=drafts).SerializeToString(),
        "evidence": json.dumps(report()).encode(),
        "status": to_status(HarnessError(Reason.CAPACITY, "Full.", retry_after=1.0)).SerializeToString(),
    }


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.stderr.write(f"name one of: {', '.join(TARGETS)}\n")
        return 2
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        sys.stderr.write("atheris is not installed: pip install atheris\n")
        return 2
    target = TARGETS[sys.argv[1]]
    with atheris.instrument_imports(include=["services", "adapters", "jsonschema"]):
        target(b"")
        seeds = _seeds()
        target(seeds[sys.argv[1]])
    with tempfile.TemporaryDirectory() as corpus:
        Path(corpus, "seed").write_bytes(seeds[sys.argv[1]])
        atheris.Setup([sys.argv[0], *sys.argv[2:], corpus], target)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
