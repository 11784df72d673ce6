"""The operator's folder of evidence: read at the start, and again whenever something in it changes (operator file, `certification`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
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

    def changed(self) -> Shelf | None:
        """What lies there now; None if that is what lay there at the last call. Errors: `OSError`."""
        files = list(self._files())
        signature = tuple((str(file), status.st_mtime_ns, status.st_size) for file, status in files)
        if signature == self._seen:
            return None
        shelf = _read([file for file, _ in files])
        self._seen = signature
        return shelf

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        found = sorted([*self.path.glob("*.json"), *self.path.glob("*/certification.json")])
        if not found:
            os.listdir(self.path)  # says whether the folder is there at all
        if len(found) > MAX_FILES:
            _log.warning("evidence_left_out", files=len(found), most=MAX_FILES)
        for file in found[:MAX_FILES]:
            yield file, file.stat()


def _read(files: list[Path]) -> Shelf:
    evidence: dict[str, Evidence] = {}
    refused: list[tuple[str, str]] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                one = read_evidence(opened.read(MAX_EVIDENCE_BYTES + 1))
        except EvidenceRefused as error:
            _log.warning("evidence_refused", file=file.name, why=str(error))
            refused.append((error.harness_id, str(error)))
        else:
            evidence[one.evidence_id] = one
    return Shelf(tuple(evidence.values()), tuple(refused))
