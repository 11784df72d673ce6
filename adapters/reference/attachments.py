"""The files of a turn: read whole through the file facade before anything is said, within the limits that the descriptor states."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from adapters.reference.message import number
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ConfigurationError
from harness.runtime.v1 import runtime_pb2

MAX_FILES: Final = 8
"""Of images, and of documents."""
MAX_BYTES: Final = 4 << 20
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
DOCUMENTS: Final = ("application/pdf", "text/plain", "text/markdown", "text/csv", "application/json")


def limits(media_types: tuple[str, ...]) -> dict[str, Any]:
    """The constraints of a claim."""
    return {"max_files": MAX_FILES, "max_bytes": MAX_BYTES, "media_types": list(media_types)}


class Attachments:
    """What a turn's message came with. Nothing but digests is kept of it."""

    __slots__ = ("_digests", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._digests: list[str] | None = None

    async def digests(self) -> list[str]:
        """SHA-256 of each file, hexadecimal, in order; read the first time. Raises ConfigurationError for files beyond the limits, before any is read,
        and what `Files.read` raises.
        """
        if self._digests is None:
            _check(self._turn.files)
            read: list[str] = []
            # One after the other, so that no more than one is in memory.
            for file in self._turn.files:
                content = await self._turn.files_access.read(file, max_bytes=MAX_BYTES)
                read.append(hashlib.sha256(content).hexdigest())
            self._digests = read
        return self._digests

    async def told(self, asked: object) -> str:
        """The digest of the file with this number, from 1; of all, one a line, for True. Raises ConfigurationError for a number without a file."""
        digests = await self.digests()
        if asked is True:
            return "\n".join(digests)
        place = int(number(asked, "file", 1, MAX_FILES * 2))
        if place > len(digests):
            raise ConfigurationError(
                f"The step `file` asks for file {place}, and the turn has {len(digests)}.", code="step_invalid"
            )
        return digests[place - 1]


def _check(files: Sequence[runtime_pb2.FileRef]) -> None:
    counts: Counter[bool] = Counter()
    for place, file in enumerate(files):
        counts[_is_image(file)] += 1
        where = f"The file at files[{place}]"
        # One of which nothing is known any more has no type: reading it says that it is gone.
        if file.media_type and file.media_type.lower() not in (*IMAGES, *DOCUMENTS):
            raise ConfigurationError(
                f"{where} is of a media type that this harness does not take: send one of {', '.join((*IMAGES, *DOCUMENTS))}.",
                code="file_media_type",
            )
        if file.size > MAX_BYTES:
            raise ConfigurationError(
                f"{where} has more than {MAX_BYTES} bytes: send a smaller one.", code="file_too_large"
            )
    if any(count > MAX_FILES for count in counts.values()):
        raise ConfigurationError(
            f"The turn has more than {MAX_FILES} images, or more than {MAX_FILES} documents: send fewer.",
            code="too_many_files",
        )


def _is_image(file: runtime_pb2.FileRef) -> bool:
    return file.media_type.lower().startswith("image/")
