"""`harness agents`: agents and their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import AgentId, Json, Limit
from cli.execute import execute

if TYPE_CHECKING:
    from cli.api import Api
    from cli.output import Output

app = typer.Typer(help="Save, check, show and disable agents.", no_args_is_help=True)

_PATH = "/api/v1/agents"
_COLUMNS = ("AGENT", "NAME", "HARNESS", "VERSION", "ENABLED", "UPDATED")


@app.command("apply")
def apply(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Blueprints as YAML or JSON; - is standard input.")
    ],
    as_json: Json = False,
) -> None:
    """Save blueprints. A blueprint equal to the current version makes no new one."""
    from cli.blueprints import apply_all

    execute(lambda api, output: apply_all(api, output, files), as_json=as_json)


@app.command("validate")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A blueprint as YAML or JSON; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Check a blueprint against the mesh's catalog without saving it. Every problem is shown, with its place."""
    from cli.blueprints import validate_one

    execute(lambda api, output: validate_one(api, output, file), as_json=as_json)


@app.command("list")
def list_agents(limit: Limit = 200, as_json: Json = False) -> None:
    """List agents by id."""

    async def work(api: Api, output: Output) -> int:
        agents, more = await api.items(_PATH, "agents", limit)
        if output.as_json:
            output.document({"agents": agents, "more": more})
            return 0
        output.table(
            _COLUMNS, [_row(agent) for agent in agents], "No agents yet: save one with `harness agents apply FILE`."
        )
        if more:
            output.note(f"There are more than {limit}: give a larger --limit.")
        return 0

    execute(work, as_json=as_json)


@app.command("show")
def show(
    agent_id: AgentId,
    version: Annotated[int | None, typer.Option("--version", min=1, help="This version, not the current one.")] = None,
    as_json: Json = False,
) -> None:
    """Show an agent and its blueprint."""

    async def work(api: Api, output: Output) -> int:
        path = f"{_PATH}/{agent_id}" if version is None else f"{_PATH}/{agent_id}/versions/{version}"
        data = await api.get(path)
        if output.as_json:
            output.document(data)
        else:
            _show(output, data["record"], data["version"])
        return 0

    execute(work, as_json=as_json)


@app.command("versions")
def versions(agent_id: AgentId, limit: Limit = 50, as_json: Json = False) -> None:
    """List an agent's versions, newest first."""

    async def work(api: Api, output: Output) -> int:
        found, more = await api.items(f"{_PATH}/{agent_id}/versions", "versions", limit)
        if output.as_json:
            output.document({"versions": found, "more": more})
            return 0
        rows = [
            (item["version"], item["created_at"], item["config_fingerprint"], item["catalog_revision"])
            for item in found
        ]
        output.table(("VERSION", "SAVED", "FINGERPRINT", "CATALOG"), rows, "No versions.")
        if more:
            output.note(f"There are more than {limit}: give a larger --limit.")
        return 0

    execute(work, as_json=as_json)


@app.command("disable")
def disable(agent_id: AgentId, as_json: Json = False) -> None:
    """Disable an agent: no new run starts, its versions stay readable. Applying it again enables it."""

    async def work(api: Api, output: Output) -> int:
        record = await api.delete(f"{_PATH}/{agent_id}")
        if output.as_json:
            output.document(record)
        else:
            output.say(f"{agent_id} is disabled; `harness agents apply` enables it again.")
        return 0

    execute(work, as_json=as_json)


def _row(agent: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(agent[key] for key in ("agent_id", "name", "harness_id", "current_version", "enabled", "updated_at"))


def _show(output: Output, record: dict[str, Any], version: dict[str, Any]) -> None:
    import yaml

    output.fields(
        {
            "agent": record["agent_id"],
            "version": f"{version['version']} (current: {record['current_version']})",
            "enabled": record["enabled"],
            "revision": record["revision"],
            "fingerprint": version["config_fingerprint"],
            "saved": version["created_at"],
        }
    )
    output.say("")
    output.say(yaml.safe_dump(version["blueprint"], sort_keys=False, allow_unicode=True, width=120).rstrip())
