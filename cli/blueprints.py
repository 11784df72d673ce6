"""Saving and checking the blueprints somebody wrote, with every problem at its place in the file (REST API; I15-I18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cli.api import Api, Broken, unreachable
from cli.commands.arguments import is_agent_id
from cli.documents import Document, read_document
from cli.errors import CommandError, ExitCode, Problem, problem_of
from cli.output import Output

_PREFIX = "blueprint"


async def apply_all(api: Api, output: Output, files: Sequence[str]) -> int:
    """Saves every blueprint that can be saved. The exit code is that of the first failure."""
    # All are read first: a file that is no blueprint at all stops everything before anything is saved.
    documents = [read_document(file) for file in files]
    results: list[dict[str, Any]] = []
    failures: list[CommandError] = []
    for document in documents:
        try:
            result = await apply_one(api, document)
        except CommandError as error:
            output.error(error)
            failures.append(error)
            if error.exit_code is ExitCode.UNREACHABLE:
                break
        else:
            results.append({"file": document.file, **result})
            if not output.as_json:
                output.say(applied_line(result), "green")
    if output.as_json:
        output.document({"agents": results})
    return int(failures[0].exit_code) if failures else 0


async def apply_one(api: Api, document: Document) -> dict[str, Any]:
    """Saves one blueprint: what became of it, the record and the version. Raises CommandError with places in the file."""
    try:
        agent_id = document.value.get("id")
        if not is_agent_id(agent_id):
            # Without an id there is no address to save it at, but there is all else that may be wrong with it.
            raise _invalid(document, (await _report(api, document))["issues"] or [_NO_ID])
        path = f"/api/v1/agents/{agent_id}"
        before = await _record(api, path)
        # The revision makes the outcome below true: nobody can save in between.
        body = {"blueprint": document.value, "expected_revision": before["revision"] if before else 0}
        data = await _save(api, path, body, document)
    except Broken as broken:
        raise unreachable(api.connection.url, broken.reason) from None
    except CommandError as error:
        raise _located(error, document) from None
    record, version = data["record"], data["version"]
    return {"outcome": _outcome(before, record), "record": record, "version": version}


def applied_line(result: dict[str, Any]) -> str:
    """What became of a blueprint, for people."""
    record = result["record"]
    return f"{record['agent_id']}: {result['outcome']} (version {record['current_version']})"


async def validate_one(api: Api, output: Output, file: str) -> int:
    """Shows the catalog's verdict. 0: valid."""
    document = read_document(file)
    try:
        report = await _report(api, document)
    except CommandError as error:
        raise _located(error, document) from None
    if output.as_json:
        output.document(report)
        return 0 if report["valid"] else int(ExitCode.FAILED)
    if not report["valid"]:
        raise _invalid(document, report["issues"])
    for issue in report["issues"]:
        output.note(f"{issue['path']}: {issue['message']}", "yellow")
    output.say(f"{document.file}: valid (fingerprint {report['config_fingerprint']})", "green")
    return 0


_NO_ID = {
    "path": "id",
    "code": "invalid_id",
    "message": "Give an id: letters, digits, `.`, `_` and `-`, at most 128 of them, a letter or digit first.",
}


async def _report(api: Api, document: Document) -> dict[str, Any]:
    return await api.post("/api/v1/agent-drafts/validate", {"blueprint": document.value})


async def _save(api: Api, path: str, body: dict[str, Any], document: Document) -> dict[str, Any]:
    try:
        return await api.put(path, body)
    except CommandError as error:
        if error.code != "invalid_request":
            raise
        # A save stops at the first kind of problem; the report has all of them.
        report = await _report(api, document)
        raise _invalid(document, report["issues"]) if report["issues"] else error from None


async def _record(api: Api, path: str) -> dict[str, Any] | None:
    try:
        return (await api.get(path))["record"]
    except CommandError as error:
        if error.exit_code is ExitCode.NOT_FOUND:
            return None
        raise


def _outcome(before: dict[str, Any] | None, record: dict[str, Any]) -> str:
    if before is None:
        return "created"
    if record["current_version"] != before["current_version"]:
        return "new version"
    return "unchanged" if before["enabled"] else "enabled again"


def _invalid(document: Document, issues: Sequence[dict[str, Any]]) -> CommandError:
    problems = [problem_of(issue) for issue in issues]
    error = CommandError("The blueprint is not valid.", ExitCode.FAILED, "invalid_request", problems=problems)
    return _located(error, document)


def _located(error: CommandError, document: Document) -> CommandError:
    """The error with the file and line of every problem, and its message about the file."""

    def located(problem: Problem) -> Problem:
        path = problem.path.removeprefix(_PREFIX).removeprefix(".")
        return replace(problem, path=path, file=document.file, line=document.line(path))

    error.problems = [problem if problem.file else located(problem) for problem in error.problems]
    if error.exit_code is not ExitCode.UNREACHABLE and not error.message.startswith(document.file):
        error.message = f"{document.file}: {error.message}"
    return error
