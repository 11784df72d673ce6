"""What `harness up` needs of the operator file: which processes it is to start itself. The catalog checks the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cli.mesh.layout import Layout
from services.common.errors import ConfigurationError

MAX_FILE_BYTES = 1 << 20

DEFAULT = """\
# The operator file of this mesh; see docs/reference/operator-file.md. Written at the first start, yours to edit.
version: 1
adapters:
  - harness_id: reference
    address: {address}
    embedded_module: adapters.reference
    profiles:
      - id: default
        display_name: Adapter host
        description: Runs in the adapter host. Free, deterministic, offline.
        placement: provider_managed
      - id: sandboxed
        display_name: Sandbox
        description: Runs in a sandbox that belongs to one conversation.
        placement: sandbox_pod
        sandbox:
          worker_module: adapters.reference
          isolation: strict
          idle_seconds: 600
          lifetime_seconds: 14400
          memory_mib: 512
          max_pids: 64
          workspace_mib: 64
      - id: faults
        display_name: Faults
        description: Runs in the adapter host and obeys the fault steps of a script. For tests.
        placement: provider_managed
        settings:
          allow_faults: true
# What agents may bind under tools.bindings.
tools:
  - id: clock
    provider: builtin
  - id: calculator
    provider: builtin
"""


@dataclass(frozen=True, slots=True)
class EmbeddedAdapter:
    """An adapter host that `harness up` starts."""

    harness_id: str
    module: str
    address: str


def write_default(layout: Layout) -> Path:
    """The operator file of the data folder, written if there is none."""
    path = layout.operator_file
    if not path.exists():
        path.write_text(DEFAULT.format(address=layout.socket("adapter-reference")), "utf-8")
    return path


def embedded_adapters(path: Path, layout: Layout) -> list[EmbeddedAdapter]:
    """The adapters to start. Only what is needed for that is looked at: the catalog refuses everything else that is wrong."""
    return [_embedded(entry, layout) for entry in _section(path, "adapters") if _is_embedded(entry)]


def names_model_endpoints(path: Path) -> bool:
    """Whether there is anything for a model egress to do."""
    return bool(_section(path, "model_endpoints"))


def named_variables(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The variables that the file takes credentials from: those the catalog reads, and those of the model egress."""
    tokens = _named(path, "adapters", "token_env") | _named(path, "tools", "token_env")
    return tokens, _named(path, "model_endpoints", "credential_env")


def _named(path: Path, section: str, key: str) -> frozenset[str]:
    entries = [entry for entry in _section(path, section) if isinstance(entry, dict)]
    return frozenset(entry[key] for entry in entries if isinstance(entry.get(key), str))


def _section(path: Path, name: str) -> list[Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--config: cannot read {path}: {error.strerror}.") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigurationError(f"--config: {path} is larger than {MAX_FILE_BYTES} bytes.")
    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"--config: {path} is not YAML: {error}") from None
    entries = document.get(name) if isinstance(document, dict) else None
    return entries if isinstance(entries, list) else []


def _is_embedded(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("harness_id", "address", "embedded_module"))
        and entry.get("enabled", True) is True
    )


def _embedded(entry: dict[str, str], layout: Layout) -> EmbeddedAdapter:
    address = entry["address"]
    if address.startswith("unix:") and not address.startswith("unix:/"):
        address = f"unix:{layout.data / address.removeprefix('unix:')}"
    return EmbeddedAdapter(entry["harness_id"], entry["embedded_module"], address)
