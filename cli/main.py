"""The entry point of `harness`: the commands, and how every failure ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.commands import agents, files, harnesses, runs, sandboxes, sessions
from cli.commands.certify import certify
from cli.commands.status import status
from cli.commands.up import up
from cli.errors import CommandError, ExitCode, usage_error
from cli.output import Output

_EPILOG = (
    "Environment: HARNESS_URL (default http://127.0.0.1:8010), HARNESS_TOKEN and HARNESS_SUBJECT (needed unless the mesh is on this "
    "machine).\n\n"
    "Exit codes: 0 ok, 1 refused or failed, 2 wrong use or configuration, 3 mesh not reachable, 4 not found, 5 conflict, "
    "6 run cancelled, 7 run waits for a person, 8 in order but only in part certified, 130 Ctrl-C, 141 nobody reads the output."
)

app = typer.Typer(
    name="harness",
    help="Runs AI agents on any agent SDK behind one contract.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    # A traceback that prints variables would print credentials.
    pretty_exceptions_enable=False,
)
app.command("up")(up)
app.command("status")(status)
app.command("certify")(certify)
app.command("run")(runs.run)
app.add_typer(runs.app, name="runs")
app.add_typer(files.app, name="files")
app.add_typer(agents.app, name="agents")
app.add_typer(sessions.app, name="sessions")
app.add_typer(harnesses.app, name="harnesses")
app.add_typer(sandboxes.app, name="sandboxes")


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"harness {version('harness-mesh')}")
        raise typer.Exit


@app.callback()
def harness(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Runs AI agents on any agent SDK behind one contract."""


def main() -> None:
    """Runs the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the command.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr] - the interpreter's own streams have it
    try:
        code = app(args=list(arguments), prog_name="harness", standalone_mode=False)
    except CommandError as error:
        return _fail(arguments, error)
    except typer.TyperException as error:
        # Wrong use, as the parser of the command line sees it; without a message it has shown the help.
        if not error.format_message():
            return int(ExitCode.USAGE)
        return _fail(arguments, usage_error(error.format_message(), _help(error)))
    except (KeyboardInterrupt, typer.Abort):
        return int(ExitCode.INTERRUPTED)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _fail(arguments: Sequence[str], error: CommandError) -> int:
    before_operands = list(arguments)[: arguments.index("--")] if "--" in arguments else arguments
    Output(as_json="--json" in before_operands).error(error)
    return int(error.exit_code)


def _help(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if context is not None else "See `harness --help`."


if __name__ == "__main__":
    main()
