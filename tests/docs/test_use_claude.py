"""The set-up on the page on Claude is true: the example's own file, a key in a file, and the example agent, against the stand-in of the Messages API."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT
from tests.standins.messages import serving_in_thread
from tests.support.mesh import TOKEN, RunningMesh, poll_until, running_mesh

PAGE = ROOT / "docs" / "how-to" / "use-claude.md"
EXAMPLE = ROOT / "examples" / "claude.yaml"
KEY = "key-canary-of-the-page"


def harness(mesh: RunningMesh, *arguments: str) -> str:
    """What a command of the page says."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")},
        "HARNESS_URL": mesh.url,
        "HARNESS_TOKEN": TOKEN,
        "COLUMNS": "400",
    }
    command = [str(Path(sys.executable).with_name("harness")), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_set_up_of_the_page_does_what_it_says():
    page = PAGE.read_text("utf-8")
    (config_of_page,) = re.findall(r"`harness up --config (\S+)`", page)
    assert ROOT / config_of_page == EXAMPLE
    apply, run = (re.findall(rf"`harness ({verb} [^`]+)`", page)[0] for verb in ("agents apply", "run agent-claude"))
    # Not tmp_path: a socket's path must be short.
    with serving_in_thread() as model, tempfile.TemporaryDirectory(prefix="hd-") as name:
        folder = Path(name)
        text, changed = re.subn(r"# base_url: .*", f"base_url: {model.url}", EXAMPLE.read_text("utf-8"))
        assert changed == 1
        config = folder / "claude.yaml"
        config.write_text(text)
        key = folder / "key"
        key.write_text(KEY)
        with running_mesh(folder / "data", ["--config", str(config)], {"ANTHROPIC_API_KEY_FILE": str(key)}) as mesh:

            def is_available() -> bool:
                return bool(
                    re.search(r"^claude_agent_sdk .* available ", harness(mesh, "harnesses", "list"), re.MULTILINE)
                )

            poll_until(is_available, "the adapter to be seen")
            assert "created (version 1)" in harness(mesh, *apply.split())
            said = harness(mesh, *run.replace('"', "").split())
        # What the stand-in says to plain text; and what of the provider's prices comes to it.
        assert "This is turn 1." in said
        assert " USD" in said
        assert "e-" not in said.split("completed")[1]
        asked = [request.body for request in model.asked if request.headers.get("x-api-key") == KEY]
        assert asked[-1]["model"] == "claude-haiku-4-5"
        assert "You answer developers in a few sentences." in str(asked[-1]["system"])
