"""Build `gen/python` from `proto/`: `python -m build_tools.generate`.

Works offline, from installed packages alone. It does nothing if neither inputs nor outputs changed since the last
time; it is safe to run twice at once, and never leaves a running program without the files it imports: a changed file
is replaced in one step, an unchanged one is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from build_tools.contract_comments import MODULE, comments_module
from build_tools.third_party import lay_out

ROOT: Final = Path(__file__).resolve().parent.parent
PROTO: Final = ROOT / "proto"
THIRD_PARTY: Final = ROOT / "build" / "third_party"
STAGING: Final = ROOT / "build" / "generated"
OUTPUT: Final = ROOT / "gen" / "python"
STAMP: Final = ROOT / "build" / "generated.stamp"


def buf(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run buf with this environment's programs (its plugins too) first on the path; its output goes to ours."""
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
    # PYTHONPATH: the plugin is a module of this folder, whether the project is installed already or not.
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(["buf", *arguments], cwd=ROOT, env=environment, check=False)


def main() -> int:
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "generate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if next(PROTO.rglob("*.proto"), None) is None:
            print("gen: there is no .proto file under proto/, so there is nothing to build", file=sys.stderr)
            return 1
        stamp = _inputs_digest()
        if _is_current(stamp):
            return 0
        return _generate(stamp)


def _generate(inputs: str) -> int:
    print("gen: building gen/python from proto/", flush=True)
    try:
        lay_out(PROTO, THIRD_PARTY)
    except FileNotFoundError as error:
        print(f"gen: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(STAGING, ignore_errors=True)
    finished = buf("generate", "--output", str(STAGING))
    if finished.returncode != 0:
        print("gen: buf generate failed; correct what it says above, then run `make gen` again", file=sys.stderr)
        return finished.returncode
    image = STAGING / "contracts.binpb"
    finished = buf("build", "proto", "--as-file-descriptor-set", "--output", str(image))
    if finished.returncode != 0:
        print("gen: buf build failed; correct what it says above, then run `make gen` again", file=sys.stderr)
        return finished.returncode
    (STAGING / MODULE).write_text(comments_module(image.read_bytes()))
    _replace(STAGING, OUTPUT)
    shutil.rmtree(STAGING)
    STAMP.write_text(f"{inputs} {_digest(_files(OUTPUT), OUTPUT)}\n")
    return 0


def _is_current(inputs: str) -> bool:
    return STAMP.exists() and STAMP.read_text() == f"{inputs} {_digest(_files(OUTPUT), OUTPUT)}\n"


def _inputs_digest() -> str:
    # The lock file stands for the versions of buf, protoc and the plugins.
    settings = [ROOT / "buf.yaml", ROOT / "buf.gen.yaml", ROOT / "requirements-dev.lock"]
    own = Path(__file__).parent.glob("*.py")
    return _digest([*sorted(PROTO.rglob("*.proto")), *settings, *sorted(own)], ROOT)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.py*") if file.suffix in (".py", ".pyi"))


def _digest(files: Iterable[Path], base: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(base)}\0{content}\n".encode())
    return digest.hexdigest()


def _replace(staged: Path, target: Path) -> None:
    # The typed stub of a file without services has no Python beside it and would only mislead.
    new = {file.relative_to(staged) for file in _files(staged) if file.with_suffix(".py").exists()}
    for name in sorted(new):
        source, destination = staged / name, target / name
        if destination.exists() and destination.read_bytes() == source.read_bytes():
            continue
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, destination)
    for file in _files(target):
        if file.relative_to(target) not in new:
            file.unlink()


if __name__ == "__main__":
    sys.exit(main())
