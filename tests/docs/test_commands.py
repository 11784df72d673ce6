"""What the pages tell a reader to type exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, pages

HARNESS = Path(sys.executable).with_name("harness")
README = ROOT / "README.md"


def commands(page: Path) -> set[tuple[str, ...]]:
    """The commands of `harness` in a page's shell blocks: the words up to the first operand."""
    found = set()
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.startswith("harness "):
                words = shlex.split(line.partition("|")[0], comments=True)[1:]
                found.add(tuple(word for word in words[:2] if re.fullmatch(r"[a-z]+", word)))
    return found


ALL = sorted({command for page in pages() for command in commands(page)})


def test_the_readme_shows_commands():
    assert {("agents", "apply"), ("runs", "list"), ("status",)} <= commands(README)


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_shown_is_known(command):
    answer = subprocess.run([HARNESS, *command, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert f"harness {' '.join(command)}" in " ".join(answer.stdout.split())


def test_an_unknown_command_would_be_seen():
    assert subprocess.run([HARNESS, "nonsense", "--help"], capture_output=True, check=False).returncode != 0


def test_every_make_target_shown_exists():
    known: dict[str, set[str]] = {}
    for page in pages():
        for block in blocks(page, "sh"):
            for folder, target in re.findall(r"^make(?: -C (\S+))?(?: ([a-z-]+))?", block, re.MULTILINE):
                if folder not in known:
                    makefile = (ROOT / folder / "Makefile").read_text("utf-8")
                    known[folder] = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
                assert not target or target in known[folder], (page, folder, target)


def test_the_adapter_of_the_readme_is_one(tmp_path):
    (code,) = blocks(README, "python")
    (tmp_path / "parrot.py").write_text(code)
    answer = subprocess.run(
        [sys.executable, tmp_path / "parrot.py", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "--listen" in answer.stdout
