"""The pages of settings and of errors."""

from typing import Final

from build_tools.reference_contracts import NOTE
from services.catalog.settings import CatalogSettings
from services.common.errors import TABLE
from services.common.settings import ProcessSettings, ServiceSettings, settings_table
from services.egress.settings import EgressSettings
from services.gateway.settings import GatewaySettings
from services.runs.settings import RunsSettings
from services.sandbox.settings import SandboxSettings
from services.sessions.settings import SessionsSettings

_SETTINGS: Final = f"""# Settings

{NOTE}

Every process is told by its environment; nothing is read from a working folder. A secret may come from a file: `HARNESS_X_FILE` names a file with the
value of `HARNESS_X`, and both at once are refused. Anything wrong stops the process at its start, with exit code 2 and one message that names every
setting concerned (I32). `harness up` sets all of it for a mesh on one machine.

Two more mean something to whoever starts processes: `HARNESS_READY_FD`, an open file descriptor on which the process writes one line when it serves, and
`HARNESS_DIE_WITH_PARENT=1`, with which the kernel ends it with its parent.
"""
_ADAPTERS: Final = """## Adapters

An adapter takes `--listen ADDRESS`, `--worker` and `--socket-mode`, and from the environment:

| setting | default | meaning |
|---|---|---|
| `HARNESS_LISTEN` | none | Address, when `--listen` is not given. |
| `HARNESS_ADAPTER_TOKEN` or `HARNESS_ADAPTER_TOKEN_FILE` | none | Token its callers must send; required on TCP, loopback too; not on a unix socket. |
| `HARNESS_ADAPTER_ALLOW_ANONYMOUS` | 0 | 1: callers on loopback need no token. For development; the log warns. |
| `HARNESS_ADAPTER_MAX_RUNS` | 1000 | Runs at once. |
| `HARNESS_ADAPTER_MAX_RUNTIMES` | 5000 | Runtimes at once. |
| `HARNESS_ADAPTER_MAX_BUFFERED_BYTES` | 268435456 | Drafts of all runs that are not yet durable; past it providers wait. |
| `HARNESS_SHUTDOWN_GRACE_SECONDS` | 10 | Seconds that runs get to finish after SIGTERM. |
| `HARNESS_LOG_LEVEL` | `info` | `debug`, `info`, `warning` or `error`. |

The variables of the command `harness` are on [its page](cli.md), the operator's choices in [the operator file](operator-file.md).
"""
_ERRORS: Final = f"""# Errors

{NOTE}

Every failure has one **code**. REST shows it as `code`; over gRPC it is the `reason` of a `google.rpc.ErrorInfo` with domain `harness`, beside
`RetryInfo` when a retry makes sense and `BadRequest` with every field problem. `run.failed` carries code and category of what ended a
run. The table is `services/common/errors.py`.

A code in capitals is from the protocol between control plane and workers and is seldom seen by clients. "Retry" says whether the
same call may succeed later; the server may say otherwise in a particular case.

| code | category | gRPC | HTTP | retry |
|---|---|---|---|---|
"""
_CATEGORIES: Final = """
An error of which an adapter knows the category only gets that category's general code. Text of a provider never crosses the boundary: a client
sees a sentence of ours, the process's own log has the rest, and `internal` gives nothing but an incident id to look for there (I22).
"""


def settings_page() -> str:
    """The whole page."""
    process, service = settings_table(ProcessSettings), settings_table(ServiceSettings)
    parts = [
        _SETTINGS,
        "## Every process\n",
        process,
        "## Every gRPC service\n",
        "On top of the above.\n",
        _without(service, process),
    ]
    for name, own in (
        ("catalog", CatalogSettings),
        ("sessions", SessionsSettings),
        ("runs", RunsSettings),
        ("sandbox", SandboxSettings),
    ):
        parts += [f"## {name}\n", _without(settings_table(own), service)]
    parts += ["## gateway\n", "No gRPC service: these stand beside those of every process.\n"]
    parts += [_without(settings_table(GatewaySettings), process)]
    parts += ["## egress\n", "No gRPC service either.\n", _without(settings_table(EgressSettings), process), _ADAPTERS]
    return "\n".join(parts)


def errors_page() -> str:
    """The whole page."""
    rows = [
        f"| `{reason.value}` | {rule.category.value} | {rule.grpc_code.name} | {rule.http_status} | {'yes' if rule.retryable else 'no'} |"
        for reason, rule in TABLE.items()
    ]
    return _ERRORS + "\n".join(rows) + "\n" + _CATEGORIES


def _without(table: str, other: str) -> str:
    """The rows that are not in the other table, under the same head."""
    known = set(other.splitlines())
    head, rows = table.splitlines()[:2], table.splitlines()[2:]
    return "\n".join([*head, *(row for row in rows if row not in known)]) + "\n"
