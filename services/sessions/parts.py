"""What a part of native state is, and which parts may go (thread state; I30, I35)."""

import hashlib
from typing import Final, TypedDict

from services.common.errors import HarnessError, Reason
from services.sessions.binding import BindingDocument

MAX_PART_BYTES: Final = 8 << 20
MAX_PARTS_OF_RUN: Final = 64
CHUNK_BYTES: Final = 1 << 20
"""Most bytes of a part in one message."""


class PartDocument(TypedDict):
    """Who wrote a part and what it is. `ordinal` counts the run's parts from 1; `check_at` is Unix milliseconds."""

    binding_id: str
    run_id: str
    ordinal: int
    codec: str
    digest: str
    size: int
    check_at: int


def part_ref_of(binding_id: str, run_id: str, idempotency_key: str) -> str:
    """`prt_` and 40 characters: the same key in the same run is the same part. The binding id is a keyed digest, and so is this."""
    # Parts of ids are never NUL, so no two tuples are the same text.
    text = "\0".join((binding_id, run_id, idempotency_key))
    return "prt_" + hashlib.blake2b(text.encode("utf-8"), digest_size=20, person=b"part").hexdigest()


def content_digest(content: bytes) -> str:
    """SHA-256 of a part, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def check_same_part(known: PartDocument, codec: str, digest: str) -> None:
    """Returns if a part that is stored is the one written now; `idempotency_mismatch` otherwise."""
    if known["digest"] != digest or known["codec"] != codec:
        raise HarnessError(
            Reason.IDEMPOTENCY_MISMATCH,
            "The run wrote another part under this idempotency_key: use a new key for new content.",
        )


def too_large() -> HarnessError:
    """The refusal of a part beyond its bound (I35)."""
    return HarnessError(
        Reason.CAPACITY, f"A part has at most {MAX_PART_BYTES} bytes: split it into several.", retryable=False
    )


def too_many() -> HarnessError:
    """The refusal of one more part of a run (I35)."""
    return HarnessError(
        Reason.CAPACITY, f"A run writes at most {MAX_PARTS_OF_RUN} parts: make them larger.", retryable=False
    )


def is_needed(part_ref: str, part: PartDocument, binding: BindingDocument | None) -> bool:
    """Whether a part is in the head, or may still get there: only the run in the slot commits, and a run never gets the slot again.

    `binding` is the open epoch that wrote it; None when that epoch is closed.
    """
    if binding is None:
        return False
    head = binding["head"]
    if head is not None and part_ref in head["part_refs"]:
        return True
    occupant = binding["active"]
    return occupant is not None and occupant["run_id"] == part["run_id"]
