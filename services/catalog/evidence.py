"""Evidence of certification: what of a report of `harness certify` is believed (certification, Evidence; I21).

The id protects against mistakes, not against forgery: whose evidence counts, the operator decides by what lies in the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

import orjson
from google.protobuf import json_format
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.adapter.v1.descriptor_pb2 import Descriptor
from services.catalog.canonical import canonical_json
from services.common.capabilities import KEYS, USABLE

SCHEMA: Final = 1
SECTIONS: Final = tuple(range(1, 13))
MIN_KIT_VERSION: Final = "0.1.0"
"""The oldest kit whose verdict is worth that of this release. Raise it with the release whose kit looks at more, or more strictly."""
MAX_EVIDENCE_BYTES: Final = 4 << 20
CERTIFIED: Final = "certified"
_VOLATILE: Final = frozenset({"evidence_id", "started_at", "seconds"})
_VOLATILE_OF_CASE: Final = frozenset({"seconds", "figures"})

_RELEASE: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")

Word = Annotated[str, Field(max_length=128)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Placement = Literal["adapter", "worker"]


class EvidenceRefused(ValueError):
    """Why a document is no evidence. `harness_id` is whose it says to be, empty if it does not say."""

    def __init__(self, why: str, harness_id: str = "") -> None:
        super().__init__(why)
        self.harness_id = harness_id


class _Part(BaseModel):
    # What a later kit adds is no reason to refuse what is understood; that is what the schema's number is for.
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)


class _Adapter(_Part):
    harness_id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")]
    adapter_version: Annotated[str, Field(min_length=1, max_length=128)]
    sdk_name: Word
    sdk_version: Word
    contract_version: Annotated[int, Field(ge=1)]
    descriptor_digest: Digest


class _Kit(_Part):
    version: Annotated[str, Field(min_length=1, max_length=64)]
    cases_digest: Digest


class _Capability(_Part):
    claimed: Word
    result: Word


class _Document(_Part):
    kind: Literal["harness.certification"]
    evidence_id: Annotated[str, Field(pattern=r"^cert-[0-9a-f]{32}$")]
    verdict: Word
    adapter: _Adapter
    placement: Placement
    kit: _Kit
    sections: Annotated[list[int], Field(max_length=64)]
    totals: dict[str, int]
    capabilities: Annotated[dict[str, _Capability], Field(max_length=128)]


@dataclass(frozen=True)
class Evidence:
    """A certification that passed: of which versions, in which placement, and which claims it looked at."""

    evidence_id: str
    harness_id: str
    adapter_version: str
    sdk_name: str
    sdk_version: str
    contract_version: int
    descriptor_digest: str
    """Of what the adapter claimed when it was looked at; see `descriptor_digest`."""
    placement: Placement
    kit_version: str
    certified: Mapping[str, str]
    """Capability keys that were looked at and in order, each with the level that was claimed then."""


def read_evidence(data: bytes) -> Evidence:
    """The evidence in a file. Errors: `EvidenceRefused`."""
    if len(data) > MAX_EVIDENCE_BYTES:
        raise EvidenceRefused(f"it has more than {MAX_EVIDENCE_BYTES} bytes")
    try:
        document = cast(object, orjson.loads(data))
    except orjson.JSONDecodeError:
        raise EvidenceRefused("it is no JSON") from None
    if not isinstance(document, dict):
        raise EvidenceRefused("it is no JSON object")
    return _accepted(cast(dict[str, Any], document))


def _accepted(document: dict[str, Any]) -> Evidence:
    harness_id = _named(document)
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= SCHEMA:
        raise EvidenceRefused(f"it is not of schema {SCHEMA}: use a kit of this release", harness_id)
    try:
        said = _Document.model_validate(document)
    except ValidationError as error:
        # I18: keys of its maps are its own text, so the fields of the schema alone are named.
        place = error.errors(include_input=False, include_url=False)[0]["loc"]
        named = ".".join(str(each) for each in place[: 2 if place[0] in ("adapter", "kit") else 1])
        raise EvidenceRefused(f"its field {named} is not as it should be", harness_id) from None
    if said.evidence_id != evidence_id(document):
        raise EvidenceRefused("its id is not that of its content: something was changed", harness_id)
    if _release(said.kit.version) < _release(MIN_KIT_VERSION):
        raise EvidenceRefused(
            f"its kit is older than {MIN_KIT_VERSION}: certify again with a kit of this release", harness_id
        )
    if said.verdict != CERTIFIED:
        raise EvidenceRefused(f"its verdict is not {CERTIFIED}", harness_id)
    # A verdict that its own parts contradict was not made by the kit.
    if tuple(said.sections) != SECTIONS or said.totals.get("failed", 1) != 0 or not said.totals.get("passed", 0):
        raise EvidenceRefused("its verdict does not follow from its sections and totals", harness_id)
    if set(said.capabilities) != set(KEYS) or any(each.result == "failed" for each in said.capabilities.values()):
        raise EvidenceRefused("its verdict does not follow from its capabilities", harness_id)
    adapter = said.adapter
    return Evidence(
        said.evidence_id,
        adapter.harness_id,
        adapter.adapter_version,
        adapter.sdk_name,
        adapter.sdk_version,
        adapter.contract_version,
        adapter.descriptor_digest,
        said.placement,
        said.kit.version,
        {key: each.claimed for key, each in said.capabilities.items() if each.result == CERTIFIED},
    )


def evidence_id(document: Mapping[str, Any]) -> str:
    """The id that a document's content has (certification, Evidence). Errors: `EvidenceRefused` for what has no canonical form."""
    content = {key: value for key, value in document.items() if key not in _VOLATILE}
    cases = content.get("cases")
    if isinstance(cases, list):
        content["cases"] = [_lasting(case) for case in cast(list[object], cases)]
    try:
        return f"cert-{hashlib.sha256(canonical_json(content)).hexdigest()[:32]}"
    except orjson.JSONEncodeError:
        raise EvidenceRefused("it is nested too deeply") from None


def descriptor_digest(descriptor: Descriptor) -> str:
    """Digest of what decides of a descriptor (certification, Evidence), as the kit makes it: the same before and after the catalog sanitised it."""
    deciding = {
        "capabilities": {
            key: {
                "level": int(descriptor.capabilities[key].level),
                "constraints": json_format.MessageToDict(descriptor.capabilities[key].constraints),
            }
            for key in KEYS
            if key in descriptor.capabilities and descriptor.capabilities[key].level in USABLE
        },
        "options_schema": json_format.MessageToDict(descriptor.options_schema),
        "placements": sorted(int(each) for each in descriptor.placements),
        "session_id_style": int(descriptor.session_id_style),
        "thread_state_strategy": int(descriptor.thread_state_strategy),
        "trust_boundary": int(descriptor.trust_boundary),
    }
    # Not orjson: it writes some floating-point numbers in another way than the kit.
    text = json.dumps(deciding, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _release(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version; none: older than all."""
    found = _RELEASE.match(version)
    return tuple(int(each) for each in found.group().split(".")) if found else ()


def _lasting(case: object) -> object:
    if not isinstance(case, dict):
        return case
    return {key: value for key, value in cast(dict[str, Any], case).items() if key not in _VOLATILE_OF_CASE}


def _named(document: Mapping[str, Any]) -> str:
    adapter = document.get("adapter")
    name: object = cast(Mapping[str, Any], adapter).get("harness_id") if isinstance(adapter, dict) else None
    return name if isinstance(name, str) and len(name) <= 64 else ""
