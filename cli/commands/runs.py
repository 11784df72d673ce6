"""`harness run` and `harness runs`: start, watch, show, resume and cancel runs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import (
    AgentId,
    FileIds,
    FilePaths,
    Json,
    Limit,
    OptionalAgent,
    OptionalConversation,
    RequestId,
    RunId,
)
from cli.errors import usage_error
from cli.execute import execute

if TYPE_CHECKING:
    from cli.api import Api
    from cli.output import Output

app = typer.Typer(help="List, show, watch, resume and cancel runs.", no_args_is_help=True)

_COLUMNS = ("RUN", "AGENT", "CONVERSATION", "STATUS", "EVENTS", "CREATED")
_FIELDS = (
    "run_id", "agent_id", "agent_version", "conversation_id", "status", "error_code", "last_sequence", "harness_id", "profile_id",
    "binding_id", "client_request_id", "resumed_from", "created_at", "updated_at", "deadline_at",
)  # fmt: skip


class OnConflict(StrEnum):
    """What to do when the conversation has an active run."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"


def run(
    agent_id: AgentId,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What to say; - is standard input.")],
    conversation_id: OptionalConversation = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="FILE", help="Text for the system prompt of this turn; - is standard input."),
    ] = None,
    files: FilePaths = None,
    file_ids: FileIds = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it and leave: print the run, not its events.")
    ] = False,
    on_conflict: Annotated[
        OnConflict, typer.Option("--on-conflict", help="What to do when the conversation has an active run.")
    ] = OnConflict.REJECT,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Run one turn of a conversation and show it live. Ctrl-C stops watching; the run goes on."""
    from cli.turn import Turn, start_and_watch

    turn = Turn.create(
        agent_id, message, conversation_id, context, on_conflict.value, request_id, files or (), file_ids or ()
    )
    execute(
        lambda api, output: start_and_watch(api, output, turn, detach=detach),
        as_json=as_json,
        on_interrupt=turn.interrupted,
    )


@app.command("list")
def list_runs(
    agent_id: OptionalAgent = None,
    conversation_id: OptionalConversation = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    if conversation_id is not None and agent_id is None:
        raise usage_error("--conversation needs --agent.", "A conversation belongs to one agent: name it with --agent.")
    given = {"agent_id": agent_id, "conversation_id": conversation_id}
    parameters = {key: value for key, value in given.items() if value is not None}

    async def work(api: Api, output: Output) -> int:
        runs, more = await api.items("/api/v1/runs", "runs", limit, parameters)
        if output.as_json:
            output.document({"runs": runs, "more": more})
            return 0
        keys = ("run_id", "agent_id", "conversation_id", "status", "last_sequence", "created_at")
        rows = [[item[key] for key in keys] for item in runs]
        output.table(_COLUMNS, rows, 'No runs yet: start one with `harness run AGENT "Hello"`.')
        if more:
            output.note(f"There are more than {limit}: give a larger --limit.")
        return 0

    execute(work, as_json=as_json)


@app.command("show")
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show where a run stands."""

    async def work(api: Api, output: Output) -> int:
        data = await api.get(f"/api/v1/runs/{run_id}")
        if output.as_json:
            output.document(data)
        else:
            output.fields({key: data[key] for key in _FIELDS if data.get(key)})
        return 0

    execute(work, as_json=as_json)


@app.command("watch")
def watch(
    run_id: RunId,
    after: Annotated[
        int, typer.Option("--after", min=0, max=2**32 - 1, help="Show only events after this sequence.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show a run's events, from the first on, until it ends. Exits as `harness run` does."""
    from cli.turn import Watch

    watching = Watch(run_id, after)
    execute(watching.follow, as_json=as_json, on_interrupt=watching.interrupted)


@app.command("resume")
def resume(
    run_id: RunId,
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision",
            metavar="JSON|FILE",
            help="The decision: JSON, or a file with it; - is standard input. Without it, it is asked for on the terminal.",
        ),
    ] = None,
    dismiss: Annotated[bool, typer.Option("--dismiss", help="Dismiss the question.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Send it and leave: print the run, not its events.")] = False,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Decide on what an interrupted run waits for, and show the run that goes on with it. The same decision again is the same run."""
    from cli.decision import Resume, resume_and_watch

    resuming = Resume.create(run_id, decision, dismiss, request_id)
    execute(
        lambda api, output: resume_and_watch(api, output, resuming, detach=detach),
        as_json=as_json,
        on_interrupt=resuming.interrupted,
    )


@app.command("cancel")
def cancel(run_id: RunId, as_json: Json = False) -> None:
    """Cancel a run, wherever it is executed; returns once it has ended. A run that ended is left as it is."""

    async def work(api: Api, output: Output) -> int:
        data = await api.delete(f"/api/v1/runs/{run_id}")
        if output.as_json:
            output.document(data)
        else:
            output.say(f"{run_id}: {data['status']}")
        return 0

    execute(work, as_json=as_json)
