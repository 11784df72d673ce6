"""`harness harnesses`: which harnesses there are, and how they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cli.commands.arguments import HarnessId, Json
from cli.errors import CommandError, ExitCode
from cli.execute import execute
from cli.text import json_line

if TYPE_CHECKING:
    from cli.api import Api
    from cli.output import Output

app = typer.Typer(help="Show harnesses, their profiles and capabilities.", no_args_is_help=True)


@app.command("list")
def list_harnesses(as_json: Json = False) -> None:
    """List the harnesses an agent may choose, the ones that are away included."""

    async def work(api: Api, output: Output) -> int:
        data = await api.get("/api/v1/harnesses")
        if output.as_json:
            output.document(data)
            return 0
        rows = [
            (
                item["harness_id"],
                item["adapter_version"],
                item["availability"],
                item["certification"],
                [profile["profile_id"] for profile in item["profiles"]],
                item["reason"],
            )
            for item in data["harnesses"]
        ]
        columns = ("HARNESS", "ADAPTER", "AVAILABILITY", "CERTIFICATION", "PROFILES", "REASON")
        output.table(columns, rows, "The operator file allows no harness.")
        return 0

    execute(work, as_json=as_json)


@app.command("show")
def show(harness_id: HarnessId, as_json: Json = False) -> None:
    """Show one harness: health, profiles, options, capabilities."""

    async def work(api: Api, output: Output) -> int:
        harnesses = (await api.get("/api/v1/harnesses"))["harnesses"]
        found = next((item for item in harnesses if item["harness_id"] == harness_id), None)
        if found is None:
            raise CommandError(
                f"There is no harness {harness_id}.", ExitCode.NOT_FOUND, "not_found", "See `harness harnesses list`."
            )
        health = await api.get(f"/api/v1/harnesses/{harness_id}/health")
        if output.as_json:
            output.document({"harness": found, "health": health})
        else:
            _show(output, found, health)
        return 0

    execute(work, as_json=as_json)


def _show(output: Output, harness: dict[str, Any], health: dict[str, Any]) -> None:
    report = health["report"] or {}
    capacity = report.get("capacity") or {}
    output.fields(
        {
            "harness": harness["harness_id"],
            "name": harness["display_name"],
            "description": harness["description"],
            "adapter": harness["adapter_version"],
            "sdk": f"{harness['sdk_name']} {harness['sdk_version']}",
            "availability": harness["availability"],
            "reason": harness["reason"],
            "certification": harness["certification"],
            "evidence": harness.get("evidence_ids") or harness.get("certification_reason"),
            "placements": harness["placements"],
            "health": report.get("status"),
            "health checked": report.get("checked_at"),
            "active runs": f"{capacity['active']} of {capacity['limit']}" if capacity else "",
        }
    )
    _checks(output, report.get("checks") or [])
    output.say("")
    profiles = [
        (item["profile_id"], item["placement"], item.get("certification"), item["description"])
        for item in harness["profiles"]
    ]
    output.table(("PROFILE", "PLACEMENT", "CERTIFICATION", "DESCRIPTION"), profiles, "No profiles.")
    options = (harness["options_schema"] or {}).get("properties") or {}
    if options:
        output.say("")
        rows = [
            (name, item.get("type"), item.get("description"))
            for name, item in options.items()
            if isinstance(item, dict)
        ]
        output.table(("OPTION", "TYPE", "DESCRIPTION"), rows, "")
    if harness["capabilities"]:
        output.say("")
        rows = [
            (key, item["level"], _evidence(item), _constraints(item), item["explanation"])
            for key, item in harness["capabilities"].items()
        ]
        output.table(("CAPABILITY", "LEVEL", "EVIDENCE", "CONSTRAINTS", "EXPLANATION"), rows, "")


def _checks(output: Output, checks: list[dict[str, Any]]) -> None:
    if not checks:
        return
    output.say("")
    rows = [
        (item["name"], item["status"] or "unknown", item.get("last_success_at"), item.get("reason")) for item in checks
    ]
    output.table(("CHECK", "STATUS", "LAST SUCCESS", "REASON"), rows, "")


def _evidence(capability: dict[str, Any]) -> str:
    """What shows a claim. A level is only what the adapter says."""
    claimed = capability["level"] in ("native", "emulated")
    return capability.get("evidence_id") or ("claimed, not shown" if claimed else "")


def _constraints(capability: dict[str, Any]) -> str:
    constraints = capability.get("constraints")
    return json_line(constraints) if constraints else ""
