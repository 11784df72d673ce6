"""The native state of one conversation as the control plane keeps it: parts that are written, and a head that is committed (thread state)."""

from dataclasses import dataclass, field

from harness.event.v1 import event_pb2

MAX_PART_BYTES = 8 * 1024 * 1024
MAX_PARTS_OF_RUN = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable part."""

    ref: str
    run_id: str
    codec: str
    content: bytes


class CommitFault(Exception):
    """A pending head names what its run did not write."""


@dataclass
class Thread:
    """Parts, head and revision. `fail_loads`/`fail_writes` let the facade refuse, as a store that is away does."""

    revision: int = 0
    head: list[str] = field(default_factory=list[str])
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    # (run, idempotency key) → reference.
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    fail_loads: bool = False
    fail_writes: bool = False
    # Whether runs write and load, in order: ("write", run, ref) or ("load", run, revision).
    journal: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def write(self, run_id: str, key: str, codec: str, content: bytes) -> str:
        """Keeps a part; the same key of the same run again gives the same reference."""
        ref = self.keys.get((run_id, key))
        if ref is None:
            ref = f"part-{len(self.parts) + 1}"
            self.keys[run_id, key] = ref
            self.parts[ref] = Part(ref, run_id, codec, content)
            self.journal.append(("write", run_id, ref))
        return ref

    def written_by(self, run_id: str) -> list[str]:
        """References of a run's parts, in the order of their writing."""
        return [ref for kind, run, ref in self.journal if kind == "write" and run == run_id]

    def commit(self, run_id: str, pending: event_pb2.PendingHead | None) -> int:
        """Makes a run's parts the head, as an executor does at its end. Without parts only the revision rises. Raises CommitFault."""
        if pending is not None:
            refs = list(pending.part_refs)
            foreign = [ref for ref in refs if ref not in self.parts or self.parts[ref].run_id != run_id]
            if foreign:
                raise CommitFault(f"pending_head of {run_id} names parts that this run did not write: {foreign[:3]}")
            self.head = refs if pending.replace else [*self.head, *refs]
        self.revision += 1
        return self.revision
