"""The page on AgentCore is true: its commands are run against a mesh with the example's own file, pointed at the stand-in of the service."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.docs.test_pages_run import output_of
from tests.standins.agentcore import AgentCore
from tests.support.mesh import TOKEN, RunningMesh, poll_until, running_mesh

PAGE = ROOT / "docs" / "how-to" / "use-agentcore.md"
EXAMPLE = ROOT / "examples" / "agentcore.yaml"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDDUMMY",
    "AWS_SECRET_ACCESS_KEY": "dummy",
    "AWS_REGION": "eu-central-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


def is_available(mesh: RunningMesh) -> bool:
    """Whether the catalog has seen the adapter well."""
    with mesh.client() as client:
        harnesses = client.get("/api/v1/harnesses").json()["data"]["harnesses"]
    return any((one["harness_id"], one["availability"]) == ("agentcore", "available") for one in harnesses)


async def test_the_commands_of_the_page_do_what_it_says():
    # Not tmp_path: a socket's path must be short.
    with AgentCore() as service, tempfile.TemporaryDirectory(prefix="hd-") as name:
        folder = Path(name)
        # As the page says: the stand-in's address goes into `endpoint_url`.
        text, changed = re.subn(r"# endpoint_url: .*", f"endpoint_url: {service.url}", EXAMPLE.read_text("utf-8"))
        assert changed == 1
        config = folder / "agentcore.yaml"
        config.write_text(text)
        mesh = running_mesh(folder / "data", ["--config", str(config)], KEYS)
        running = await asyncio.to_thread(mesh.__enter__)
        try:
            await asyncio.to_thread(poll_until, lambda: is_available(running), "the adapter to be seen")
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")},
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HARNESS_URL": running.url,
                "HARNESS_TOKEN": TOKEN,
                "COLUMNS": "400",
            }
            output = await output_of(PAGE, environment)
        finally:
            await asyncio.to_thread(mesh.__exit__, None, None, None)
        (asked,) = service.of("InvokeHarness")
    assert re.search(r"^agentcore .* available ", output, re.MULTILINE), output
    assert "agent-agentcore: created (version 1)" in output
    assert "Hello" in output.split("created (version 1)")[1]
    profiles = {one["id"]: one for one in yaml.safe_load(text)["adapters"][1]["profiles"]}
    settings = profiles["default"]["settings"]
    assert asked.request.query["harnessArn"] == [settings["harness_arn"]]
    assert asked.document["model"] == {"bedrockModelConfig": {"modelId": settings["models"]["fast"]}}
    assert asked.document["systemPrompt"] == [{"text": "You answer developers in a few sentences."}]
    assert [tool["name"] for tool in asked.document["tools"]] == ["clock", "calculator", "ask_person"]


def test_the_stand_in_says_its_address_when_it_is_started_as_the_page_says():
    (command,) = re.findall(r"^python -m (tests\.standins\.agentcore)$", PAGE.read_text("utf-8"), re.MULTILINE)
    process = subprocess.Popen([sys.executable, "-m", command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+\n", process.stdout.readline())
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


@pytest.mark.parametrize("profile", ["own", "container"])
async def test_profiles_that_the_example_has_as_comments_are_whole(profile):
    from adapters.agentcore.adapter import AgentCoreAdapter
    from harness.common.v1 import blueprint_pb2, placement_pb2

    text = EXAMPLE.read_text("utf-8")
    commented = re.search(rf"^      # - id: {profile}\n((?:      #  .*\n)+)", text, re.MULTILINE)
    assert commented is not None
    (read,) = yaml.safe_load(re.sub(r"^      # ", "", commented.group(0), flags=re.MULTILINE))
    said = await AgentCoreAdapter().evaluate(
        blueprint_pb2.AgentBlueprint(id="a"), placement_pb2.PLACEMENT_PROVIDER_MANAGED, read["settings"]
    )
    assert not said.issues
