"""Which media types are taken, and whether content is what it is declared to be. Pure; sees content piece by piece."""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Final

from services.common.errors import FieldIssue, HarnessError, invalid_request

DEFAULT_MEDIA_TYPES: Final = (
    "application/json",
    "application/pdf",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/webp",
    "text/csv",
    "text/markdown",
    "text/plain",
)
HEAD_BYTES: Final = 16
"""How much of the beginning tells what content is."""
_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,62}/[a-z0-9][a-z0-9.+-]{0,62}\Z")
_SIGNATURES: Final[Mapping[str, tuple[re.Pattern[bytes], ...]]] = {
    "image/png": (re.compile(rb"\x89PNG\r\n\x1a\n"),),
    "image/jpeg": (re.compile(rb"\xff\xd8\xff"),),
    "image/gif": (re.compile(rb"GIF8[79]a"),),
    "image/webp": (re.compile(rb"RIFF.{4}WEBP", re.DOTALL),),
    "application/pdf": (re.compile(rb"%PDF-"),),
}
_PROGRAMS: Final = re.compile(
    rb"\x7fELF|MZ|\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba\xbe|\x00asm|dex\n|#!"
)
_BINARY_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def plain_type(declared: str) -> str:
    """The media type without parameters, in lower case; empty where it is none."""
    kind = declared.partition(";")[0].strip().lower()
    return kind if _TYPE.match(kind) else ""


def is_text(media_type: str) -> bool:
    """Whether content of this type has to be text."""
    return media_type.startswith("text/") or media_type == "application/json" or media_type.endswith("+json")


class Allowed:
    """The media types that are taken. `ValueError` for what is no exact media type: a family would let in what nobody thought of."""

    def __init__(self, media_types: Sequence[str]) -> None:
        for media_type in media_types:
            if plain_type(media_type) != media_type:
                raise ValueError(f"{media_type!r} is no media type, in lower case and without parameters")
        self._types = frozenset(media_types)

    def check(self, declared: str) -> str:
        """The type as it is kept; `invalid_request` for one that is not taken."""
        media_type = plain_type(declared)
        if media_type not in self._types:
            what = "Say what the file is" if not declared else "Files of this media type are not taken"
            raise _refused(f"{what}: send one of {', '.join(sorted(self._types))}.")
        return media_type


class ContentCheck:
    """Follows content from its first byte to its last."""

    def __init__(self, media_type: str) -> None:
        self._type = media_type
        self._head = b""
        self._checked = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict") if is_text(media_type) else None

    def feed(self, piece: bytes) -> None:
        """The next piece; `invalid_request` as soon as it is known not to be what was declared."""
        if not self._checked:
            self._head += piece[: HEAD_BYTES - len(self._head)]
            if len(self._head) >= HEAD_BYTES:
                self._check_head()
        if self._decoder is not None:
            self._check_text(piece, final=False)

    def end(self) -> None:
        """There is no more of it."""
        if not self._checked:
            self._check_head()
        if self._decoder is not None:
            self._check_text(b"", final=True)

    def _check_head(self) -> None:
        self._checked = True
        signatures = _SIGNATURES.get(self._type)
        if signatures is not None:
            if not any(each.match(self._head) for each in signatures):
                raise self._otherwise()
        elif self._decoder is None and self._is_something_else():
            # A type without a rule of its own is believed, but not where it is plainly something else.
            raise self._otherwise()

    def _is_something_else(self) -> bool:
        return bool(_PROGRAMS.match(self._head)) or any(
            each.match(self._head) for each in (each for known in _SIGNATURES.values() for each in known)
        )

    def _check_text(self, piece: bytes, *, final: bool) -> None:
        if self._decoder is None:
            return
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError:
            raise self._otherwise() from None
        if _BINARY_CONTROLS.search(text):
            raise self._otherwise()

    def _otherwise(self) -> HarnessError:
        rule = "text in UTF-8" if is_text(self._type) else "what such files begin with"
        return _refused(f"The content is not {self._type} ({rule} was looked for): declare what it is, or convert it.")


def _refused(message: str) -> HarnessError:
    return invalid_request([FieldIssue("media_type", "media_type", message)])
