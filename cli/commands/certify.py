"""`harness certify`: holds an adapter or a worker to the numbered rules of the contract (reference: certification)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import Json
from cli.errors import CommandError, ExitCode, usage_error
from cli.execute import finish
from cli.output import Output

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from conformance.certification import Options
    from conformance.results import CaseResult

_MARKS = {"passed": "pass", "failed": "FAIL", "not_applicable": "  - ", "not_verified": "  ? "}
_STYLES = {"passed": "green", "failed": "bold red", "not_applicable": "dim", "not_verified": "yellow"}
_VERDICTS = {
    "certified": ("CERTIFIED", "bold green"),
    "failed": ("NOT CERTIFIED: rules are broken", "bold red"),
    "incomplete": ("NOT CERTIFIED: rules that everybody must keep could not be looked at", "bold yellow"),
    "partial": ("IN ORDER, and not everything was looked at: no certificate", "bold yellow"),
}
_CODES = {"certified": ExitCode.OK, "partial": ExitCode.PARTIAL}


def certify(
    target: Annotated[
        list[str],
        typer.Option(
            "--target",
            metavar="ADDRESS",
            help="The endpoint: unix:/path or host:port. Several workers work side by side.",
        ),
    ],
    placement: Annotated[
        str, typer.Option("--placement", metavar="adapter|worker", help="What the endpoint is.")
    ] = "adapter",
    section: Annotated[
        list[int] | None,
        typer.Option("--section", metavar="N", min=1, max=12, help="Only this section; may be repeated."),
    ] = None,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="What steers the endpoint.")] = "reference",
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", help="Write certification.json and junit.xml there."),
    ] = None,
    replica: Annotated[str, typer.Option("--replica", metavar="ADDRESS", help="Another replica of the endpoint.")] = "",
    descriptor: Annotated[
        str,
        typer.Option("--descriptor", metavar="FILE|ADDRESS", help="For a worker: what its adapter claims."),
    ] = "",
    facades: Annotated[
        str, typer.Option("--facades", metavar="HOST:PORT", help="Where the endpoint reaches this command.")
    ] = "",
    pid: Annotated[
        int,
        typer.Option(
            "--pid", metavar="PID", min=0, help="The endpoint's process, here, to see what it leaves (Linux)."
        ),
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Holds a bearer token for the endpoint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Certify an adapter or worker endpoint in any language. Exits 0 only if it is certified."""
    import asyncio

    from conformance.capability_keys import SECTIONS
    from conformance.certification import Options

    if placement not in ("adapter", "worker"):
        raise usage_error(f"--placement: {placement!r} is neither adapter nor worker.")
    if len(target) > 1 and placement == "adapter":
        raise usage_error(
            "--target: several are for workers; another replica of an adapter host is given with --replica."
        )
    if report is not None:
        _prepare(report)
    options = Options(
        target=target[0],
        beside=tuple(target[1:]),
        placement=placement,
        sections=tuple(sorted(set(section))) if section else tuple(SECTIONS),
        driver=driver,
        token=_token(token_file),
        replica=replica,
        descriptor=descriptor,
        facades=facades,
        pid=pid,
    )
    finish(lambda: asyncio.run(_certify(options, report, Output(as_json=as_json))))


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"--token-file: {path} cannot be read: {error}") from None
    if not token:
        raise usage_error(f"--token-file: {path} is empty.")
    return token


async def _certify(options: Options, report: Path | None, output: Output) -> int:
    from conformance.certification import certify as run
    from conformance.failure import TargetError

    stop = _told_to_stop(output)

    def tell(result: CaseResult) -> None:
        how = "  (rehearsed)" if result.rehearsed else ""
        line = f"{_MARKS[result.result]}  {result.case.id:<32} {result.seconds:7.2f} s  {result.case.title}{how}"
        output.note(line, _STYLES[result.result])
        if result.result in ("failed", "not_verified"):
            output.note(f"      {result.reason}", _STYLES[result.result])

    output.note(f"Certifying {options.target} as {options.placement}, steered by the driver {options.driver}.")
    try:
        made = await run(options, tell, stop)
    except TargetError as error:
        code = ExitCode.UNREACHABLE if error.unreachable else ExitCode.USAGE
        raise CommandError(str(error), code, "unreachable" if error.unreachable else "usage", error.hint) from None
    if output.as_json:
        output.document(made.document)
    else:
        _show(made.document, output)
    # After it was shown: what cannot be written is not lost.
    if report is not None:
        _write(report, made.document)
        output.note(f"Written to {report}: certification.json, junit.xml.")
    if made.interrupted:
        return int(ExitCode.INTERRUPTED)
    return int(_CODES.get(made.verdict, ExitCode.FAILED))


def _told_to_stop(output: Output) -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM: what runs is cleaned up and told. The second ends the command at once."""
    import asyncio
    import signal

    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stop.set()
        output.note("Interrupted: cleaning up. Once more ends it at once.")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stop


def _prepare(folder: Path) -> None:
    """Finds out before the certification, not after it, that its report cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise usage_error(f"--report: {folder} cannot be written: {error}") from None


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    from conformance.junit import junit_xml

    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        for name, content in (("certification.json", f"{text}\n".encode()), ("junit.xml", junit_xml(document))):
            # Whole or not at all: half a report is no evidence.
            half = folder / f".{name}.{os.getpid()}"
            try:
                half.write_bytes(content)
                half.replace(folder / name)
            finally:
                half.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(
            f"--report: {folder} cannot be written: {error}",
            ExitCode.FAILED,
            "report_not_written",
            "See above for what came of it.",
        ) from None


def _show(document: Mapping[str, Any], output: Output) -> None:
    from conformance.capability_keys import SECTIONS

    output.note("")
    rows: list[list[Any]] = []
    for number in document["sections"]:
        mine = [case["result"] for case in document["cases"] if case["section"] == number]
        counts = [mine.count(result) or "" for result in ("passed", "failed", "not_applicable", "not_verified")]
        rows.append([number, SECTIONS[number], *counts])
    output.table(("SECTION", "", "PASSED", "FAILED", "NOT APPLICABLE", "NOT VERIFIED"), rows, "No sections.")
    output.note("")
    claims = [
        [key, claim["claimed"], claim["result"].replace("_", " "), claim["reason"]]
        for key, claim in document["capabilities"].items()
        if claim["result"] != "not_applicable"
    ]
    output.table(("CAPABILITY", "CLAIMED", "RESULT", ""), claims, "No capability is claimed.")
    output.note("")
    adapter, totals = document["adapter"], document["totals"]
    sdk = f", {adapter['sdk_name']} {adapter['sdk_version']}" if adapter["sdk_name"] else ""
    text, style = _VERDICTS[document["verdict"]]
    output.say(
        f"{text}  {adapter['harness_id']} {adapter['adapter_version']}{sdk}, contract {adapter['contract_version']}",
        style,
    )
    told = ", ".join(f"{count} {result.replace('_', ' ')}" for result, count in totals.items())
    rehearsed = sum(case["rehearsed"] for case in document["cases"])
    told += f"; {rehearsed} of them rehearsed by the adapter" if rehearsed else ""
    output.say(f"{told}; {document['seconds']:.1f} s; evidence {document['evidence_id']}")
