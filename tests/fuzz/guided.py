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
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
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


def _decision(data: bytes) -> None:
    """An interrupt as it gets through the lifecycle, and what a client decides on it: two messages, the first behind its size."""
    from adapters.sdk.lifecycle import ProtocolViolation, RunLifecycle
    from services.runs import resume
    from services.runs.decision import issues_of
    from services.runs.run import tombstone

    size = int.from_bytes(data[:2], "big")
    draft = parsed(event_pb2.EventDraft, data[2 : 2 + size])
    decided = parsed(run_service_pb2.ResumeRunRequest, data[2 + size :])
    if draft is None or decided is None or not draft.payload.HasField("interrupt_requested"):
        return
    try:
        accepted = RunLifecycle().accept(draft)
    except ProtocolViolation:
        return
    if not protovalidate.collect_violations(decided):
        issues_of(accepted[0].payload.interrupt_requested, decided)
        resume.request_of(tombstone("run-1", "b", 1, 0, 0), None, decided)


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
    "decision": _decision,
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
    asked = events.form_requested(
        "i1", [payload_pb2.FormField(name="f0", type=payload_pb2.FORM_FIELD_TYPE_NUMBER, label="f0")]
    ).SerializeToString()
    decided = run_service_pb2.ResumeRunRequest(run_id="run-1", interrupt_id="i1", revision=1)
    decided.form_values.update({"f0": 3.5})
    return {
        "decision": len(asked).to_bytes(2, "big") + asked + decided.SerializeToString(),
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
