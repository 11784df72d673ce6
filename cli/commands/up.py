"""`harness up`: a whole mesh on this machine."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import usage_error
from cli.execute import finish
from cli.text import safe_text
from services.common.errors import ConfigurationError


def up(
    host: Annotated[
        str, typer.Option("--host", help="Where REST is served. Anything but loopback needs HARNESS_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Its port, and the next ones for more gateways; 0 picks a free one for each.",
        ),
    ] = 8010,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Where everything is kept. Default: HARNESS_DATA_DIR, or .harness."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The operator file. Default: the reference harness alone."),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="SERVICE=N,...",
            help="How many processes of catalog, sessions, runs, gateway: 1 to 16 each, 1 where nothing is said.",
        ),
    ] = None,
    store_url: Annotated[
        str | None,
        typer.Option(
            "--store-url",
            metavar="URL",
            help="mongodb://host/database for all services. Default: HARNESS_STORE_URL or HARNESS_STORE_URL_FILE, else a SQLite file each. "
            "With a password in it, use the environment: arguments can be seen by every user.",
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Once ready, save the example agent and show a turn of it.")
    ] = False,
) -> None:
    """Start every service and adapter as own processes, keep them running, and stop them all on Ctrl-C."""
    if config is not None and not config.is_file():
        raise usage_error(
            f"--config: {config} is not a file.", "Name an operator file: see docs/reference/operator-file.md."
        )
    import asyncio

    finish(lambda: asyncio.run(_up(host, port, data_dir, config, replicas, store_url, demo=demo)))


async def _up(
    host: str,
    port: int,
    data_dir: Path | None,
    config: Path | None,
    replicas: str | None,
    store_url: str | None,
    *,
    demo: bool,
) -> int:
    from cli.mesh.layout import default_data_dir
    from cli.mesh.replicas import Replicas, parse_replicas
    from cli.mesh.store import database_url
    from cli.mesh.supervisor import UpOptions, run_mesh

    on_ready: Callable[[str], Awaitable[None]] | None = None
    if demo:
        from cli.demo import show_demo

        on_ready = show_demo
    try:
        wanted = Replicas() if replicas is None else parse_replicas(replicas)
        wanted.ports(port)
        database = database_url(store_url)
    except ConfigurationError as error:
        raise usage_error(str(error), "See `harness up --help`.") from None
    options = UpOptions(host, port, data_dir or default_data_dir(), config, wanted, database)
    return await run_mesh(options, say=_say, on_ready=on_ready)


def _say(text: str) -> None:
    sys.stdout.write(f"{safe_text(text)}\n")
    sys.stdout.flush()
