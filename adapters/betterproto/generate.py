"""Build `gen/betterproto` from `proto/` with betterproto2's compiler: `python -m adapters.betterproto.generate`.

Works offline, from installed packages alone, and does nothing if nothing it reads has changed. `make gen` has laid out
the imported files before (`build/third_party`).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

from google.protobuf import descriptor_pb2, json_format

from buf.validate import validate_pb2

ROOT: Final = Path(__file__).resolve().parents[2]
PROTO: Final = ROOT / "proto"
THIRD_PARTY: Final = ROOT / "build" / "third_party"
# The package's name is not `harness`: that is the other stack's.
OUTPUT: Final = ROOT / "gen" / "betterproto" / "betterproto_contracts"
AREAS: Final = ("adapter", "common", "event", "runtime", "state", "tool")
OPTIONS: Final = "client_generation=async,server_generation=async"


def main() -> int:
    """Builds the package if need be; 0, or protoc's exit code."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "betterproto.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = sorted(source for area in AREAS for source in (PROTO / "harness" / area).rglob("*.proto"))
        stamp = _digest(sources)
        # The stamp lies in what it speaks of: neither is there without the other.
        current = OUTPUT / ".inputs"
        if current.exists() and current.read_text() == stamp:
            return 0
        if not THIRD_PARTY.exists():
            sys.stderr.write("gen: build/third_party is not there; run `make gen` first\n")
            return 1
        return _generate(sources, stamp)


def _generate(sources: list[Path], stamp: str) -> int:
    sys.stdout.write("gen: building gen/betterproto from proto/\n")
    staged = ROOT / "build" / "betterproto" / OUTPUT.name
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    described = staged.with_name("described")
    google = THIRD_PARTY / "google" / "rpc"
    programs = str(Path(sys.executable).parent)
    folders = (PROTO, THIRD_PARTY, Path(str(files("grpc_tools"))) / "_proto")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *(f"-I{folder}" for folder in folders),
            f"--python_betterproto2_out={staged}",
            f"--python_betterproto2_opt={OPTIONS}",
            f"--descriptor_set_out={described}",
            *map(str, (*sources, google / "error_details.proto", google / "status.proto")),
        ],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        sys.stderr.write(f"{finished.stderr}gen: protoc failed; correct what it says above, then run this again\n")
        return finished.returncode
    (staged / "constraints.py").write_text(_constraints(described.read_bytes()))
    (staged / ".inputs").write_text(stamp)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    before = staged.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    if OUTPUT.exists():
        os.replace(OUTPUT, before)
    os.replace(staged, OUTPUT)
    shutil.rmtree(before, ignore_errors=True)
    return 0


def _constraints(described: bytes) -> str:
    """The constraints of all fields as a module. They are options of the contracts, which betterproto2's compiler leaves out."""
    fields: dict[str, Any] = {}
    oneofs: dict[str, list[str]] = {}

    def walk(message: descriptor_pb2.DescriptorProto, package: str, outer: str = "") -> None:
        # A nested message is a class of its own, with the names joined.
        name = f"{outer}{message.name}"
        found = {field.name: _rules_of(field) for field in message.field}
        if any(found.values()):
            fields[f"{package}.{name}"] = {field: rules for field, rules in found.items() if rules}
        needed = [oneof.name for oneof in message.oneof_decl if oneof.options.Extensions[validate_pb2.oneof].required]
        if needed:
            oneofs[f"{package}.{name}"] = needed
        for nested in message.nested_type:
            walk(nested, package, name)

    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        for message in file.message_type:
            walk(message, file.package)
    return (
        f'"""Written by `python -m adapters.betterproto.generate`."""\n\nfrom typing import Any\n\n'
        f"CONSTRAINTS: dict[str, dict[str, Any]] = {fields!r}\nREQUIRED_ONEOFS: dict[str, list[str]] = {oneofs!r}\n"
    )


def _rules_of(field: descriptor_pb2.FieldDescriptorProto) -> dict[str, Any]:
    rules = json_format.MessageToDict(field.options.Extensions[validate_pb2.field], preserving_proto_field_name=True)
    return {name: _numbers(value) for name, value in rules.items()}


def _numbers(value: Any) -> Any:
    """64-bit numbers, which JSON has as text, as numbers; of the rules with text, none is of digits alone."""
    if isinstance(value, dict):
        return {name: _numbers(inner) for name, inner in cast("dict[str, Any]", value).items()}
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _digest(sources: list[Path]) -> str:
    digest = hashlib.sha256(f"{OPTIONS}\0{metadata.version('betterproto2-compiler')}".encode())
    for source in (Path(__file__), *sources):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
