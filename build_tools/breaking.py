"""Compare `proto/` with the last release: `python -m build_tools.breaking`.

A release is a tag `vMAJOR.MINOR.PATCH` that is an ancestor of the work tree. Wire- and JSON-compatibility with it is
part of the contract (buf's `WIRE_JSON`).
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from typing import Final

from build_tools.generate import PROTO, ROOT, THIRD_PARTY, buf
from build_tools.third_party import lay_out

_RELEASED: Final = ROOT / "build" / "released"


def last_release() -> str | None:
    """The newest release tag reachable from HEAD, or None."""
    found = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*.[0-9]*.[0-9]*")
    return found.stdout.decode().strip() if found.returncode == 0 else None


def main() -> int:
    tag = last_release()
    if tag is None:
        print("breaking: there is no release tag yet (vMAJOR.MINOR.PATCH), so nothing to compare with")
        return 0
    archive = _git("archive", "--format=tar", tag, "--", "proto")
    if archive.returncode != 0:
        print(f"breaking: cannot read proto/ of {tag}: {archive.stderr.decode().strip()}", file=sys.stderr)
        return 1
    shutil.rmtree(_RELEASED, ignore_errors=True)
    _RELEASED.mkdir(parents=True)
    _unpack(archive.stdout)
    (_RELEASED / "buf.yaml").write_text("version: v2\nmodules:\n  - path: proto\n  - path: third_party\n")
    lay_out(_RELEASED / "proto", _RELEASED / "third_party")
    lay_out(PROTO, THIRD_PARTY)
    image = _RELEASED / "image.binpb"
    built = buf("build", str(_RELEASED / "proto"), "--output", str(image))
    if built.returncode != 0:
        return built.returncode
    print(f"breaking: comparing proto/ with {tag}", flush=True)
    return buf("breaking", "proto", "--against", str(image)).returncode


def _unpack(archive: bytes) -> None:
    # Not extractall: its safe filter is missing in the first releases of Python 3.11.
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                file = _RELEASED / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
