"""What can be known of the images without building them."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from build_tools.component_lock import component_lock, needed

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
COMPONENTS = (
    "catalog", "sessions", "runs", "sandbox", "egress", "gateway", "adapter-reference", "adapter-agentcore", "adapter-claude", "cli",
)  # fmt: skip
# What an image's component imports: modules of its program, and of what it starts.
PROGRAMS = {
    "catalog": ["services.catalog.__main__"],
    "sessions": ["services.sessions.__main__"],
    "runs": ["services.runs.__main__"],
    "sandbox": ["services.sandbox.__main__", "adapters.reference.adapter"],
    "egress": ["services.egress.__main__"],
    "gateway": ["services.gateway.__main__"],
    "adapter-reference": ["adapters.reference.__main__"],
    "adapter-agentcore": ["adapters.agentcore.__main__"],
    "adapter-claude": ["adapters.claude_agent_sdk.__main__"],
    "cli": ["cli.main", "cli.mesh.status", "cli.turn", "cli.blueprints", "cli.mesh.supervisor"],
}
# Fails to find every package that is not in the image, then imports the programs.
IMPORTS = """
import sys
from importlib import import_module
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name
present = set(sys.argv[1].split(","))
owners = packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in owners and not present & {canonicalize_name(owner) for owner in owners[top]}:
            raise ModuleNotFoundError(f"{name} is in none of the image's packages", name=name)

sys.meta_path.insert(0, Absent())
for name in [name for name in sys.modules if name.partition(".")[0] in ("packaging",)]:
    del sys.modules[name]
for program in sys.argv[2:]:
    import_module(program)
"""


@dataclass
class Stage:
    """One stage of the Dockerfile."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """The arguments of every instruction of a kind."""
        return [arguments for kind, arguments in self.instructions if kind == name]


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    found: dict[str, Stage] = {}
    current = Stage("")
    lines = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    for kind, _, arguments in (line.partition(" ") for line in lines if line.strip()):
        if kind == "FROM":
            base, _, name = arguments.partition(" AS ")
            current = found.setdefault(name, Stage(base))
        elif found:
            current.instructions.append((kind, arguments))
    return found


STAGES = stages()


def extras(component: str) -> list[str]:
    """The extras whose packages are in a component's image."""
    (install,) = STAGES[f"build-{component}"].all("RUN")
    return re.findall(r"component_lock ([a-z ]+) >", install)[0].split()


def test_every_component_has_its_image():
    assert set(COMPONENTS) == {name for name, stage in STAGES.items() if stage.base == "base"}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_every_source_exists_and_is_let_in(stage):
    let_in = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text("utf-8")
    for copy in stage.all("COPY"):
        words = shlex.split(copy)
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in STAGES
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source.rstrip('/')}\n" in let_in, f"{source} is kept out by Dockerfile.dockerignore"


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_runs_without_rights_and_says_how_it_is(component):
    stage = STAGES[component]
    assert stage.all("USER") == ["10001:10001"]
    assert stage.instructions.index(("USER", "10001:10001")) > max(
        (index for index, (kind, _) in enumerate(stage.instructions) if kind in ("RUN", "COPY")), default=0
    )
    (health,) = stage.all("HEALTHCHECK")
    assert (health == "NONE") == (component == "cli")
    (entry,) = stage.all("ENTRYPOINT")
    program = json.loads(entry)
    assert (
        program == ["harness"]
        if component == "cli"
        else (ROOT / program[2].replace(".", "/") / "__main__.py").is_file()
    )


def test_no_base_is_left_open():
    bases = {stage.base for stage in STAGES.values()} - STAGES.keys()
    assert bases == {"${PYTHON_IMAGE}"}
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.search(r":\d", image), image


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_has_every_package_its_component_imports(component):
    present = ",".join(sorted({*needed(extras(component)), "harness-mesh"}))
    answer = subprocess.run(
        [sys.executable, "-c", IMPORTS, present, *PROGRAMS[component]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert answer.returncode == 0, answer.stderr


def test_a_missing_package_would_be_seen():
    present = ",".join(sorted({*needed(["catalog"]) - {"pyyaml"}, "harness-mesh"}))
    answer = subprocess.run(
        [sys.executable, "-c", IMPORTS, present, *PROGRAMS["catalog"]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "yaml is in none of the image's packages" in answer.stderr


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_installed_is_locked_with_hashes(component):
    lock = component_lock(extras(component))
    packages = re.findall(r"^[a-z0-9._-]+==", lock, re.MULTILINE)
    assert len(packages) == len(needed(extras(component)))
    assert lock.count("--hash=sha256:") >= len(packages)
    assert "aiohttp==" not in lock


def test_an_unknown_extra_is_refused():
    with pytest.raises(ValueError, match=r"no such extra in pyproject\.toml: nonsense"):
        component_lock(["nonsense"])
