"""The operator file, `harness.yaml`: which adapters may be used, and the profiles an author may choose (docs/reference/operator-file.md).

All problems are reported at once, each with its field, and any of them keeps the service from starting (I32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator

from services.catalog.disclosure import text_problem
from services.catalog.tool_registry import RegisteredTool, ToolEntry, registered
from services.common.errors import ConfigurationError
from services.common.model_endpoints import MAX_ENDPOINTS, EndpointId, ModelEndpoint
from services.common.operator_section import (
    Address,
    JsonSettings,
    Section,
    TokenFile,
    TokenVariable,
    resolved_address,
    resolved_token,
)
from services.common.operator_yaml import read_yaml

MAX_ADAPTERS: Final = 256
MAX_PROFILES: Final = 64
MAX_TOOLS: Final = 1_024


def _shown_text(text: str) -> str:
    problem = text_problem(text)
    if problem is not None:
        # I18: a profile's texts are shown to every author.
        raise ValueError(f"holds {problem}, and authors see this text")
    return text


HarnessId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")]
ProfileId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
ModelAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=128)]


class Limits(Section):
    """Upper bounds under a profile; none: those of the contract."""

    max_run_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    max_concurrent_runs: Annotated[int, Field(ge=1, le=100_000)] | None = None


class Sandbox(Section):
    """How a sandbox of a profile is made."""

    worker_module: Module
    isolation: Literal["strict", "none"] = "strict"
    idle_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    lifetime_seconds: Annotated[int, Field(ge=1, le=604_800)] = 14_400
    memory_mib: Annotated[int, Field(ge=32, le=1_048_576)] = 512
    max_pids: Annotated[int, Field(ge=1, le=32_768)] = 64
    workspace_mib: Annotated[int, Field(ge=1, le=1_048_576)] = 64
    cpu_millis: Annotated[int, Field(ge=0, le=1_024_000)] = 0


class ProfileEntry(Section):
    """One profile: an alias authors may choose, and what stands behind it, which they never see."""

    id: ProfileId
    display_name: Annotated[str, Field(max_length=200), AfterValidator(_shown_text)] = ""
    description: Annotated[str, Field(max_length=2000), AfterValidator(_shown_text)] = ""
    placement: Literal["provider_managed", "sandbox_pod", "in_process"]
    settings: JsonSettings = Field(default_factory=dict)
    model_aliases: Annotated[list[ModelAlias], Field(max_length=64)] = Field(default_factory=list)
    limits: Limits = Limits()
    sandbox: Sandbox | None = None
    model_endpoint: EndpointId | None = None

    @model_validator(mode="after")
    def _placement_fits(self) -> Self:
        if (self.placement == "sandbox_pod") != (self.sandbox is not None):
            raise ValueError(
                "placement sandbox_pod needs a sandbox section, and only it may have one: add or remove `sandbox`"
            )
        if self.sandbox is not None and self.sandbox.idle_seconds > self.sandbox.lifetime_seconds:
            raise ValueError("sandbox.idle_seconds is above sandbox.lifetime_seconds: lower it")
        if self.model_endpoint is not None and self.sandbox is None:
            raise ValueError(
                "model_endpoint is the way out of a sandbox: remove it, or choose the placement sandbox_pod"
            )
        return self


class AdapterEntry(Section):
    """One allow-listed adapter."""

    harness_id: HarnessId
    address: Address
    token_env: TokenVariable | None = None
    token_file: TokenFile | None = None
    embedded_module: Module | None = None
    enabled: bool = True
    profiles: Annotated[list[ProfileEntry], Field(min_length=1, max_length=MAX_PROFILES)]

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.token_env is not None and self.token_file is not None:
            raise ValueError("token_env and token_file are both set: keep one of them")
        return self


class CertificationEntry(Section):
    """Which certifications the operator accepts."""

    evidence: Annotated[str, Field(min_length=1, max_length=4096)]
    require_evidence: bool = False


class OperatorFile(Section):
    """The whole file."""

    version: Literal[1]
    adapters: Annotated[list[AdapterEntry], Field(max_length=MAX_ADAPTERS)]
    retention_profiles: Annotated[list[ProfileId], Field(min_length=1, max_length=64)] = Field(
        default_factory=lambda: ["standard"]
    )
    tools: Annotated[list[ToolEntry], Field(max_length=MAX_TOOLS)] = Field(default_factory=list[ToolEntry])
    model_endpoints: Annotated[list[ModelEndpoint], Field(max_length=MAX_ENDPOINTS)] = Field(
        default_factory=list[ModelEndpoint]
    )
    certification: CertificationEntry | None = None


@dataclass(frozen=True)
class AllowedAdapter:
    """An adapter the operator allows, with everything resolved."""

    harness_id: str
    address: str
    token: SecretStr | None
    enabled: bool
    profiles: Mapping[str, ProfileEntry]


@dataclass(frozen=True)
class Operator:
    """What the operator decided: adapters by harness id, tools by their ids."""

    adapters: Mapping[str, AllowedAdapter]
    retention_profiles: tuple[str, ...]
    tools: Mapping[str, RegisteredTool]
    evidence: Path | None = None
    """Folder of the evidence that is accepted; None: no harness is certified here."""
    require_evidence: bool = False
    """Whether a claim counts with evidence alone, when an agent is validated and when a run starts (I21)."""


def load_operator_file(path: Path, data_dir: Path, environment: Mapping[str, str]) -> Operator:
    """Reads and checks the file. Errors: `ConfigurationError` with every problem, each with file and field (I32)."""
    raw = read_yaml(path)
    problems = list(_duplicates(raw))
    document: OperatorFile | None = None
    try:
        document = OperatorFile.model_validate(raw)
    except ValidationError as error:
        problems += _problems_of(error)
    adapters: dict[str, AllowedAdapter] = {}
    for number, entry in enumerate(document.adapters if document is not None else ()):
        try:
            adapters[entry.harness_id] = _allowed(entry, data_dir, environment)
        except ValueError as error:
            problems.append(f"adapters[{number}].{error}")
    tools, wrong = registered(document.tools if document is not None else (), data_dir, environment)
    problems += wrong
    if document is not None:
        problems += _unknown_endpoints(document)
    evidence: Path | None = None
    if document is not None and document.certification is not None:
        # A relative folder is below the data folder, as sockets are.
        evidence = data_dir.resolve() / document.certification.evidence
        if not evidence.is_dir():
            problems.append(
                f"certification.evidence: {document.certification.evidence!r} is no folder: make it, or remove the key."
            )
    if problems or document is None:
        raise ConfigurationError("\n".join(f"{path}: {problem}" for problem in problems))
    required = document.certification is not None and document.certification.require_evidence
    return Operator(adapters, tuple(document.retention_profiles), tools, evidence, required)


def _allowed(entry: AdapterEntry, data_dir: Path, environment: Mapping[str, str]) -> AllowedAdapter:
    return AllowedAdapter(
        entry.harness_id,
        resolved_address(entry.address, data_dir),
        resolved_token(entry.token_env, entry.token_file, environment),
        entry.enabled,
        {profile.id: profile for profile in entry.profiles},
    )


def _problems_of(error: ValidationError) -> Iterator[str]:
    # The input is left out: it may be a secret in the wrong place.
    for problem in error.errors(include_input=False, include_context=False, include_url=False):
        path = _field_path(problem["loc"])
        message = {
            "extra_forbidden": "there is no such key; see docs/reference/operator-file.md",
            "missing": "is missing",
        }.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        yield f"{path or 'the file'}: {message}."


def _field_path(location: tuple[int | str, ...]) -> str:
    text = ""
    for element in location:
        text += f"[{element}]" if isinstance(element, int) else f".{element}" if text else element
    return text


def _duplicates(raw: object) -> Iterator[str]:
    """Ids that are given twice, found also in a file that has other problems."""
    adapters = _entries(raw, "adapters")
    yield from _twice(adapters, "harness_id", "adapters")
    for number, adapter in enumerate(adapters):
        yield from _twice(_entries(adapter, "profiles"), "id", f"adapters[{number}].profiles")
    yield from _twice(_entries(raw, "tools"), "id", "tools")
    yield from _twice(_entries(raw, "model_endpoints"), "id", "model_endpoints")


def _unknown_endpoints(document: OperatorFile) -> Iterator[str]:
    known = {endpoint.id for endpoint in document.model_endpoints}
    for number, adapter in enumerate(document.adapters):
        for place, profile in enumerate(adapter.profiles):
            if profile.model_endpoint is not None and profile.model_endpoint not in known:
                yield (
                    f"adapters[{number}].profiles[{place}].model_endpoint: {profile.model_endpoint!r} is not among "
                    "model_endpoints: add it there, or name one that is."
                )


def _entries(raw: object, name: str) -> list[Any]:
    value = cast(dict[str, Any], raw).get(name) if isinstance(raw, dict) else None
    return cast(list[Any], value) if isinstance(value, list) else []


def _twice(entries: list[Any], key: str, path: str) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        value = cast(dict[str, Any], entry).get(key) if isinstance(entry, dict) else None
        if not isinstance(value, str):
            continue
        if value in first:
            yield f"{path}[{number}].{key}: {value!r} is already that of {path}[{first[value]}]."
        else:
            first[value] = number
