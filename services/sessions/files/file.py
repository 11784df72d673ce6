"""What a file is once it is whole, and what a subject may have of them (I2, I35)."""

import unicodedata
from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request

PART_BYTES: Final = 1 << 20
"""Every part of a file has this size but the last, so that an offset says which part it is in."""
MAX_NAME_CHARACTERS: Final = 255
NAMELESS: Final = "file"
_REPLACED: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_SEPARATORS: Final = frozenset("/\\")


class FileDocument(TypedDict):
    """A whole file. `upload_id` names its parts; times are Unix milliseconds. It never changes but for its expiry."""

    owner_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    upload_id: str
    created_at: int
    expires_at: int
    request_key: NotRequired[str]


class FilePartDocument(TypedDict):
    """A part of a file, or of an upload that is not whole. `ordinal` counts from 0; `check_at` is Unix milliseconds."""

    file_id: str
    upload_id: str
    ordinal: int
    check_at: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one file and what all files of a subject may have (I35)."""

    max_file_bytes: int
    max_files: int
    max_total_bytes: int

    def check_size(self, size: int) -> None:
        """`body_too_large` beyond the bound of a file."""
        if size > self.max_file_bytes:
            raise HarnessError(
                Reason.BODY_TOO_LARGE,
                f"A file has at most {self.max_file_bytes} bytes: send a smaller one, or its content as several files.",
            )

    def check_total(self, files: int, size: int) -> None:
        """`capacity`, not retryable, when a subject with this much has more than it may."""
        if files > self.max_files:
            raise HarnessError(
                Reason.CAPACITY, f"You have {self.max_files} files, the most allowed: delete some.", retryable=False
            )
        if size > self.max_total_bytes:
            raise HarnessError(
                Reason.CAPACITY,
                f"Your files would have more than the {self.max_total_bytes} bytes allowed: delete some.",
                retryable=False,
            )


def label(name: str) -> str:
    """The name as it is kept: a label and never a path. What separates folders, controls a terminal or turns text around becomes `_`."""
    kept = unicodedata.normalize("NFC", name).strip()
    kept = "".join(
        "_" if character in _SEPARATORS or unicodedata.category(character) in _REPLACED else character
        for character in kept
    )[:MAX_NAME_CHARACTERS].strip()
    return kept if kept.strip(". ") else NAMELESS


def part_key(upload_id: str, ordinal: int) -> str:
    """Key of a part."""
    return f"{upload_id}.{ordinal:06}"


def check_same_file(known: FileDocument, name: str, media_type: str, sha256: str) -> None:
    """Returns if a file that is kept is the one uploaded now; `idempotency_mismatch` otherwise."""
    if (known["name"], known["media_type"], known["sha256"]) != (name, media_type, sha256):
        raise HarnessError(
            Reason.IDEMPOTENCY_MISMATCH,
            "Another file was uploaded under this client_request_id: use a new one for new content.",
        )


def check_whole(size: int, announced: int, *, complete: bool) -> None:
    """`invalid_request` for an upload that is empty, or is not all that was announced."""
    if not complete:
        raise invalid_request([FieldIssue("complete", "required", "The upload ended before it was complete.")])
    if announced and size != announced:
        raise invalid_request([FieldIssue("size", "mismatch", f"{announced} bytes were announced, {size} came.")])
    if not size:
        raise invalid_request([FieldIssue("", "required", "The file is empty: send its content.")])
