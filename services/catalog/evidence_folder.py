"""The operator's folder of evidence: read at the start, and again whenever something in it changes (operator file, `certification`)."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.catalog.evidence import MAX_EVIDENCE_BYTES, Evidence, EvidenceRefused, read_evidence
from services.common.logs import get_logger

MAX_FILES: Final = 1_024
"""Files looked at; more are left out, and the log says so (I35)."""
_log = get_logger(__name__)

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Shelf:
    """All evidence that is believed by itself, and what was refused, as pairs of harness id and reason."""

    evidence: tuple[Evidence, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass
class EvidenceFolder:
    """A folder with `*.json`, and reports in folders of their own, `*/certification.json`. Calls read the disk: not for the event loop."""

    path: Path
    _seen: Signature | None = field(default=None, init=False)
    _last: Shelf | None = field(default=None, init=False)

    def changed(self) -> Shelf | None:
        """What lies there now; None if that is what lay there at the last call. Errors: `OSError` of the folder itself."""
        found = self._files()
        files = found[:MAX_FILES]
        signature = tuple((str(file), *_stamp(file)) for file in files)
        if signature == self._seen:
            return None
        shelf, unread, refusals = _read(files)
        # What could not be read now may be readable at the next look, though nothing about it has changed.
        self._seen = None if unread else signature
        if shelf == self._last:
            return None
        self._last = shelf
        for file, why in refusals:
            _log.warning("evidence_refused", file=file.name, why=why)
        if len(found) > MAX_FILES:
            _log.warning("evidence_left_out", files=len(found), most=MAX_FILES)
        return shelf

    def _files(self) -> list[Path]:
        found = sorted([*self.path.glob("*.json"), *self.path.glob("*/certification.json")])
        if not found:
            os.listdir(self.path)  # says whether the folder is there at all
        return found


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size


def _read(files: list[Path]) -> tuple[Shelf, bool, list[tuple[Path, str]]]:
    """What the files say, whether one could not be read, and why each that was refused was. One file is as nothing to the others."""
    evidence: dict[str, Evidence] = {}
    refused: list[tuple[str, str]] = []
    refusals: list[tuple[Path, str]] = []
    unread = False
    for file in files:
        try:
            one = read_evidence(_content(file))
        except EvidenceRefused as error:
            refused.append((error.harness_id, str(error)))
            refusals.append((file, str(error)))
        except OSError as error:
            unread = True
            refused.append(("", "it cannot be read"))
            refusals.append((file, f"it cannot be read: {error.strerror}"))
        else:
            evidence[one.evidence_id] = one
    return Shelf(tuple(evidence.values()), tuple(refused)), unread, refusals


def _content(file: Path) -> bytes:
    # A pipe of that name would keep whoever opens it waiting for a writer, and with it the start.
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise EvidenceRefused("it is no file")
        return opened.read(MAX_EVIDENCE_BYTES + 1)
