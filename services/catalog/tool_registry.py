"""The portable tools an operator registers: `tools` of the operator file (design 0003; docs/reference/operator-file.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue, SecretStr

from services.catalog.builtin_tools import BUILTIN, BUILTIN_TOOLS
from services.catalog.canonical import canonical_json
from services.catalog.disclosure import credential_problem
from services.catalog.options_schema import SchemaRefused, admitted
from services.catalog.tool_names import NamesCollide, names_of
from services.common.operator_section import (
    Address,
    JsonSettings,
    Section,
    TokenFile,
    TokenVariable,
    check_json,
    resolved_address,
    resolved_token,
)

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_RESULT_BYTES: Final = 256 * 1024
DEFAULT_TIMEOUT_SECONDS: Final = 30
DEFAULT_RESULT_BYTES: Final = 64 * 1024
SCHEMA: Final = "input_schema"


class ToolEntry(Section):
    """One tool as the file has it. What is None takes the built-in tool's value, or else the default of `_Kind`."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    provider: Address
    description: Annotated[str, Field(min_length=1, max_length=4_000)] | None = None
    input_schema: dict[str, JsonValue] | None = None
    token_env: TokenVariable | None = None
    token_file: TokenFile | None = None
    sensitive: bool | None = None
    idempotent: bool | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = DEFAULT_TIMEOUT_SECONDS
    max_attempts: Annotated[int, Field(ge=1, le=5)] = 1
    max_result_bytes: Annotated[int, Field(ge=1, le=MAX_RESULT_BYTES)] = DEFAULT_RESULT_BYTES
    settings: JsonSettings = Field(default_factory=dict)


@dataclass(frozen=True)
class RegisteredTool:
    """A tool with everything resolved. Shared, never changed."""

    tool_id: str
    provider_name: str
    description: str
    input_schema: Mapping[str, Any]
    provider: str
    token: SecretStr | None
    sensitive: bool
    idempotent: bool
    timeout_seconds: int
    max_attempts: int
    max_result_bytes: int
    settings: Mapping[str, Any] = field(repr=False)


Tools = Mapping[str, RegisteredTool]


def registered(
    entries: Sequence[ToolEntry], data_dir: Path, environment: Mapping[str, str]
) -> tuple[dict[str, RegisteredTool], list[str]]:
    """The tools by id, and every problem with its field. With a problem nothing may be used (I32)."""
    problems: list[str] = []
    try:
        names = names_of(entry.id for entry in entries)
    except NamesCollide as error:
        return {}, [f"tools: {error}: rename one of them."]
    tools: dict[str, RegisteredTool] = {}
    for number, entry in enumerate(entries):
        reading = _Reading(entry, data_dir, environment)
        tool = reading.tool(names[entry.id])
        problems += [f"tools[{number}].{problem}" for problem in reading.problems]
        tools[entry.id] = tool
    return tools, problems


class _Reading:
    """One entry while it is read; `problems` gathers what is wrong with it."""

    def __init__(self, entry: ToolEntry, data_dir: Path, environment: Mapping[str, str]) -> None:
        self._entry = entry
        self._data_dir = data_dir
        self._environment = environment
        self._builtin = BUILTIN_TOOLS.get(entry.id) if entry.provider == BUILTIN else None
        self.problems: list[str] = []

    def tool(self, name: str) -> RegisteredTool:
        entry, builtin = self._entry, self._builtin
        self.problems += _problems(entry)
        idempotent = self._idempotent()
        if entry.max_attempts > 1 and not idempotent:
            # A repeated call of such a tool could have its effect twice.
            self.problems.append("max_attempts: more than one try needs a tool that is idempotent: set it to 1.")
        sensitive = entry.sensitive
        return RegisteredTool(
            tool_id=entry.id,
            provider_name=name,
            description=entry.description or (builtin.description if builtin is not None else ""),
            input_schema=self._schema(),
            provider=self._provider(),
            token=self._token(),
            # Unless it is said otherwise, a person is asked before a tool that nobody here knows is called.
            sensitive=sensitive if sensitive is not None else builtin is None or builtin.sensitive,
            idempotent=idempotent,
            timeout_seconds=entry.timeout_seconds,
            max_attempts=entry.max_attempts,
            max_result_bytes=entry.max_result_bytes,
            settings=entry.settings,
        )

    def _idempotent(self) -> bool:
        said = self._entry.idempotent
        return said if said is not None else self._builtin is not None and self._builtin.idempotent

    def _schema(self) -> Mapping[str, Any]:
        if self._builtin is not None:
            return self._builtin.input_schema
        given = self._entry.input_schema or {}
        try:
            check_json(given, SCHEMA)
            if len(canonical_json(given)) > MAX_SCHEMA_BYTES:
                raise SchemaRefused(SCHEMA, f"has more than {MAX_SCHEMA_BYTES} bytes as JSON")
            return admitted(given, SCHEMA, shown=False)
        except SchemaRefused as error:
            self.problems.append(f"{error.path}: {error.why}.")
        except ValueError as error:
            self.problems.append(f"{SCHEMA}: {error}.")
        return {}

    def _provider(self) -> str:
        if self._entry.provider == BUILTIN:
            return BUILTIN
        try:
            return resolved_address(self._entry.provider, self._data_dir, "provider")
        except ValueError as error:
            self.problems.append(str(error))
            return self._entry.provider

    def _token(self) -> SecretStr | None:
        if self._entry.provider == BUILTIN:
            return None
        try:
            return resolved_token(self._entry.token_env, self._entry.token_file, self._environment)
        except ValueError as error:
            self.problems.append(str(error))
            return None


def _problems(entry: ToolEntry) -> Iterator[str]:
    """What is wrong with the entry as it stands."""
    if entry.provider == BUILTIN:
        if entry.id == "http_get":
            yield from _http_get_problems(entry.settings)
        if entry.id not in BUILTIN_TOOLS:
            yield f"id: there is no such built-in tool; there is: {', '.join(sorted(BUILTIN_TOOLS))}."
        elif entry.input_schema is not None:
            yield f"{SCHEMA}: a built-in tool has its own: remove it."
        for key in ("token_env", "token_file"):
            if getattr(entry, key) is not None:
                yield f"{key}: a built-in tool needs no token: remove it."
        return
    if entry.description is None:
        yield "description: is missing: it tells a model what the tool does."
    if entry.input_schema is None:
        yield f"{SCHEMA}: is missing: it says which arguments the tool takes; `type: object` alone allows none."
    if entry.token_env is not None and entry.token_file is not None:
        yield "token_env: token_file is set as well: keep one of them."
    problem = credential_problem(entry.description or "")
    if problem is not None:
        yield f"description: holds {problem}, and a model reads this text."


def _http_get_problems(settings: Mapping[str, JsonValue]) -> Iterator[str]:
    """What would let the tool reach nothing, or what nobody meant: a model chooses the address, the operator what may be one."""
    hosts, networks = settings.get("hosts"), settings.get("networks", [])
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) and host for host in hosts):
        yield "settings.hosts: must be a list of the hosts it may reach, such as api.example.com or *.example.com."
    for number, network in enumerate(networks if isinstance(networks, list) else [networks]):
        try:
            ip_network(network if isinstance(network, str) else "")
        except ValueError:
            yield f"settings.networks[{number}]: is no network; write one as 10.20.0.0/16."
    for key in settings:
        if key not in ("hosts", "networks"):
            yield f"settings.{key}: there is no such setting; there is: hosts, networks."
