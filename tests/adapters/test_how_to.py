"""The page on writing an adapter is true: its code is taken from it and run as it says."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from adapters.sdk.testing import connected, kinds, text_of
from tests.adapters.processes import AdapterProcess
from tests.support.mesh import HARNESS, poll_until, running_mesh

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-an-adapter.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def install(folder: Path) -> None:
    """Lays the adapter out as a package, and its test beside it."""
    adapter, test, rehearsed = blocks("python")
    package = folder / "parrot"
    package.mkdir()
    (package / "__init__.py").write_text("")
    adapter = adapter.replace("\n\nclass ", "from adapters.sdk.rehearsal import rehearsal_of\n\n\nclass ", 1)
    beginning = "-> AsyncIterator[events.Draft]:\n"
    assert adapter.count(beginning) == 1
    (package / "__main__.py").write_text(
        adapter.replace(beginning, beginning + rehearsed).replace("adapters.parrot", "parrot")
    )
    (folder / "test_parrot.py").write_text(test.replace("adapters.parrot", "parrot"))


async def test_the_adapter_of_the_page_is_served_in_both_placements(folder):
    install(folder)
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    for arguments in ((), ("--worker",)):
        process = AdapterProcess(folder, "parrot", arguments, environment, name=f"p{len(arguments)}")
        await process.start()
        try:
            async with connected(process.address, worker=bool(arguments), harness_id="parrot") as client:
                drafts = await client.turn("hello there")
                assert text_of(drafts) == "hello there "
                assert kinds(drafts)[-2:] == ["usage.updated", "run.completed"]
                failed = (await client.turn("word " * 101))[-1].payload.run_failed
                assert (failed.code, failed.retry_after_seconds) == ("rate_limited", 30)
        finally:
            assert await process.stop() == 0


async def test_the_adapter_of_the_page_is_certified(folder):
    install(folder)
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    process = await AdapterProcess(folder, "parrot", environment=environment).start()
    command = blocks("sh")[3].replace("unix:/tmp/parrot.sock", process.address).split()
    try:
        certifying = await asyncio.create_subprocess_exec(
            HARNESS, *command[1:], cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await certifying.communicate()
    finally:
        await process.stop()
    assert certifying.returncode == 0, output.decode()
    assert "CERTIFIED  parrot 0.1.0, contract 1" in output.decode()
    assert (folder / "build" / "certification" / "parrot" / "certification.json").exists()


async def test_the_test_of_the_page_passes(folder):
    install(folder)
    process = await asyncio.create_subprocess_exec(
        *[
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "--rootdir",
            str(folder),
        ],
        str(folder / "test_parrot.py"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(PAGE.parents[2])])},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert "1 passed" in output.decode()


def test_the_commands_and_the_operators_file_name_what_there_is():
    serve, use, test, certify = blocks("sh")
    assert certify.startswith("harness certify --target unix:/tmp/parrot.sock --driver rehearsal --report ")
    assert serve.count("python -m adapters.parrot --listen unix:") == 2
    assert "agents apply agent-parrot.yaml" in use
    assert "asyncio_mode=auto test_parrot.py" in test
    operator, _ = blocks("yaml")
    (entry,) = yaml.safe_load(operator)["adapters"]
    assert entry["harness_id"] == "parrot"
    assert entry["profiles"][0]["placement"] == "provider_managed"


def test_the_adapter_of_the_page_gets_into_the_catalog_and_its_agent_runs(folder):
    install(folder)
    operator, agent = blocks("yaml")
    (entry,) = yaml.safe_load(operator)["adapters"]
    entry |= {"embedded_module": "parrot", "address": "unix:run/parrot.sock"}
    config, blueprint = folder / "harness.yaml", folder / "agent-parrot.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "adapters": [entry]}))
    blueprint.write_text(agent)
    path = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    with running_mesh(folder / "data", ["--config", str(config)], path) as mesh:
        poll_until(lambda: "  available" in harness(mesh, "harnesses", "list"), "the parrot to be available")
        assert harness(mesh, "agents", "apply", str(blueprint)) == "agent-parrot: created (version 1)\n"
        assert harness(mesh, "run", "agent-parrot", "hello there") == "hello there \n"


def harness(mesh, *arguments):
    """What the command says, spoken to this mesh."""
    command = [HARNESS, *arguments]
    environment = {**os.environ, "HARNESS_URL": mesh.url}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
