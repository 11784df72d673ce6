"""Which descriptors are admitted, and what is kept of them (adapter contract, "Descriptor"; I18, I21).

A descriptor that breaks a rule shuts its harness out as a whole, with the rule and the field as the reason: half a
descriptor would promise what nobody checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import struct_pb2

from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.common.v1.capability_pb2 import Capability
from services.catalog.canonical import Bounds, NotJson, canonical_json, message_document, plain_struct
from services.catalog.capabilities import complete
from services.catalog.disclosure import findings, text_problem
from services.catalog.options_schema import OptionsSchema, SchemaRefused
from services.common.capabilities import constraint_problem

CONTRACT_VERSIONS: Final = frozenset({1})
"""The versions of the adapter contract this control plane speaks."""
MAX_DESCRIPTOR_BYTES: Final = 256 * 1024
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_PRESENTATION_BYTES: Final = 64 * 1024
MAX_CONSTRAINTS_BYTES: Final = 16 * 1024
MAX_JSON_DEPTH: Final = 24
MAX_JSON_VALUES: Final = 8_192


class DescriptorRefused(ValueError):
    """Why a descriptor is not admitted; safe to show."""


@dataclass(frozen=True)
class KnownDescriptor:
    """An admitted descriptor: sanitised, with every capability key stated. Shared, never changed."""

    descriptor: Descriptor
    contract_version: int
    options: OptionsSchema
    capabilities: Mapping[str, Capability]
    document: Mapping[str, Any]


def admit(harness_id: str, said: Descriptor) -> KnownDescriptor:
    """The sanitised form of what an adapter said of itself; its shape was checked against the contract.

    Errors: `DescriptorRefused`.
    """
    if said.ByteSize() > MAX_DESCRIPTOR_BYTES:
        raise DescriptorRefused(f"The descriptor has more than {MAX_DESCRIPTOR_BYTES} bytes.")
    if said.harness_id != harness_id:
        # Not quoted: it is whatever answers at that address.
        raise DescriptorRefused(
            "The adapter at the configured address is that of another harness: one id answers at one address alone."
        )
    common = CONTRACT_VERSIONS.intersection(said.contract_versions)
    if not common:
        raise DescriptorRefused(
            f"The adapter speaks contract versions {sorted(said.contract_versions)}, this control plane "
            f"{sorted(CONTRACT_VERSIONS)}: update the older of the two."
        )
    _check_texts(said)
    kept = Descriptor()
    kept.CopyFrom(said)
    kept.DiscardUnknownFields()
    schema = _bounded(said.options_schema, "options_schema", MAX_SCHEMA_BYTES)
    presentation = _bounded(said.presentation, "presentation", MAX_PRESENTATION_BYTES)
    _refuse_findings(presentation, "presentation")
    capabilities = complete(said.capabilities)
    for key, capability in capabilities.items():
        problem = constraints_problem(capability.constraints, key)
        if problem is not None:
            raise DescriptorRefused(f"The descriptor's capabilities.{key}.{problem}"[:500])
    kept.capabilities.clear()
    for key, capability in capabilities.items():
        kept.capabilities[key].CopyFrom(capability)
    # I21: nothing the adapter says of itself is evidence, and no rule of the kit shows replay safety, so it is never believed.
    kept.evidence_id = ""
    kept.replay_safe = False
    try:
        options = OptionsSchema(schema)
    except SchemaRefused as error:
        raise DescriptorRefused(f"The descriptor's {error.path} {error.why}."[:500]) from None
    return KnownDescriptor(kept, max(common), options, capabilities, message_document(kept))


def constraints_problem(constraints: struct_pb2.Struct, key: str = "") -> str | None:
    """Why a capability's constraints may not be shown, or cannot be compared; None if they may and can."""
    try:
        value = plain_struct(constraints, "constraints", Bounds(MAX_JSON_DEPTH, MAX_JSON_VALUES))
    except NotJson as error:
        return f"constraints holds a value that {error.what}."
    if (problem := constraint_problem(key, constraints)) is not None:
        return f"constraints.{problem}."
    if len(canonical_json(value)) > MAX_CONSTRAINTS_BYTES:
        return f"constraints has more than {MAX_CONSTRAINTS_BYTES} bytes."
    for finding in findings(value, "constraints"):
        return f"{finding.path} holds {finding.what}."  # I18
    return None


def _bounded(struct: struct_pb2.Struct, path: str, limit: int) -> dict[str, Any]:
    try:
        value = plain_struct(struct, path, Bounds(MAX_JSON_DEPTH, MAX_JSON_VALUES))
    except NotJson as error:
        # error.path may hold the adapter's own keys; ours is enough.
        raise DescriptorRefused(f"The descriptor's {path} holds a value that {error.what}.") from None
    if len(canonical_json(value)) > limit:
        raise DescriptorRefused(f"The descriptor's {path} has more than {limit} bytes.")
    return value


def _check_texts(said: Descriptor) -> None:
    for path, text in _texts(said):
        problem = text_problem(text)
        if problem is not None:
            raise DescriptorRefused(f"The descriptor's {path} holds {problem}.")  # I18


def _texts(said: Descriptor) -> Iterator[tuple[str, str]]:
    for name in ("display_name", "description", "adapter_version", "sdk_name", "sdk_version"):
        yield name, getattr(said, name)
    for number, dependency in enumerate(said.dependencies):
        yield f"dependencies[{number}].name", dependency.name
        yield f"dependencies[{number}].version_range", dependency.version_range
    for key, capability in complete(said.capabilities).items():
        yield f"capabilities.{key}.explanation", capability.explanation


def _refuse_findings(value: Mapping[str, Any], path: str) -> None:
    for finding in findings(value, path):
        raise DescriptorRefused(f"The descriptor's {finding.path} holds {finding.what}."[:500])  # I18
