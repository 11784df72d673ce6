"""What holds for every stream of a certification is looked at in every stream, whatever its case was about."""

from typing import TYPE_CHECKING

import protovalidate

if TYPE_CHECKING:
    from conformance.plane.run import Run, Stream

MAX_EVENT_BYTES = 256 * 1024
MAX_FINDINGS = 5
_TERMINALS = frozenset({"run_completed", "run_interrupted", "run_cancelled", "run_failed"})
_ROOT_ONLY = _TERMINALS | {"session_updated"}


class Observations:
    """Findings by rule, the first few of each."""

    def __init__(self) -> None:
        self.findings: dict[str, list[str]] = {}
        self.streams = 0
        self.drafts = 0

    def note(self, rule_id: str, finding: str) -> None:
        """A breach of a rule that was seen on the way."""
        kept = self.findings.setdefault(rule_id, [])
        if len(kept) < MAX_FINDINGS:
            kept.append(finding)

    def look(self, run: "Run", stream: "Stream") -> None:
        """Looks at a stream that has ended."""
        self.streams += 1
        self._offsets(stream)
        drafts = stream.drafts
        self.drafts += len(drafts)
        kinds = [draft.payload.WhichOneof("kind") or "nothing" for draft in drafts]
        where = f"{stream.method} of {run.fence.run_id}"
        if "run_started" in kinds:
            self.note("R2.2", f"{where} sent run.started.")
        ends = [index for index, kind in enumerate(kinds) if kind in _TERMINALS]
        if len(ends) > 1:
            self.note("R2.3", f"{where} sent {len(ends)} terminal events.")
        if ends and ends[0] != len(kinds) - 1:
            self.note("R2.3", f"{where} sent {kinds[ends[0] + 1]} after {kinds[ends[0]]}.")
        if stream.ended and not ends and (drafts or stream.method != "AttachRun") and not self._joined_late(stream):
            self.note("R2.4", f"{where} ended with status OK and without a terminal.")
        if ends and stream.refusal is not None:
            self.note("R2.4", f"{where} sent its terminal and ended with {stream.refusal}.")
        for kind, draft in zip(kinds, drafts, strict=True):
            self._draft(where, kind, draft)

    def _joined_late(self, stream: "Stream") -> bool:
        # A repeated StartRun of a run that was acknowledged to its end has nothing to say any more.
        return not stream.drafts

    def _offsets(self, stream: "Stream") -> None:
        following = None if stream.after is None else stream.after + 1
        for first, drafts in stream.batches:
            if following is not None and first != following:
                self.note("R2.1", f"{stream.method}: offset {first} where {following} was due.")
            following = first + len(drafts)

    def _draft(self, where: str, kind: str, draft: "object") -> None:
        size = draft.ByteSize()  # type: ignore[attr-defined] - a generated message
        if size > MAX_EVENT_BYTES:
            self.note("R2.8", f"{where}: {kind} has {size} bytes.")
        for violation in protovalidate.collect_violations(draft):  # type: ignore[arg-type] - as above
            path = violation.proto.field
            place = ".".join(element.field_name for element in path.elements) if path is not None else "the event"
            self.note("R2.8", f"{where}: {kind} breaks {violation.proto.rule_id} at {place}.")
            return
        namespace, native_id = draft.namespace, draft.native_session_id  # type: ignore[attr-defined] - as above
        if namespace and kind in _ROOT_ONLY:
            self.note("R10.1", f"{where}: {kind} stands inside a namespace.")
        if native_id and kind != "session_updated":
            self.note("R5.14", f"{where}: {kind} carries a native session id.")
