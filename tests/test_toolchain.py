"""The build, the locks and the contracts' documentation: what `make` promises to everyone else."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from build_tools.proto_source import print_file
from build_tools.third_party import validate_descriptor

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "gen" / "python"
BUF = Path(sys.executable).with_name("buf")

TOY = """\
syntax = "proto3";

package harness.toy.v1;

import "buf/validate/validate.proto";
import "google/api/annotations.proto";

// What to get.
message GetToyRequest {
  // Its name, 1 to 8 characters.
  string name = 1 [(buf.validate.field).string = {
    min_len: 1
    max_len: 8
  }];
}

// A toy.
message GetToyResponse {
  // Kilograms.
  int32 weight = 1;
}

// Toys.
service ToyService {
  // Gets one.
  rpc GetToy(GetToyRequest) returns (GetToyResponse) {
    option (google.api.http) = {get: "/v1/toys/{name}"};
  }
}
"""

FEATURES_PROTO2 = """\
syntax = "proto2";
package toy;
import public "google/protobuf/duration.proto";
import "google/protobuf/descriptor.proto";
import "buf/validate/validate.proto";
option java_package = "com.\\"toy\\"\\\\x";
extend google.protobuf.FieldOptions { repeated string note = 50001; optional Kind sort = 50002; }
enum Kind { option allow_alias = true; NONE = 0; SOME = 1; ALSO_SOME = 1 [deprecated = true]; NEGATIVE = -4;
  reserved 5, 7 to 9, 20 to max; reserved "GONE"; }
message All {
  option deprecated = true;
  message Inner { extensions 100 to 199, 1000 to max; enum Deep { ZERO = 0; } optional Deep deep = 1; }
  required int64 id = 1 [json_name = "ID"];
  optional string text = 2 [default = "a\\n\\"b\\" \\303\\244", (note) = "one", (note) = "two", (sort) = SOME];
  optional bytes raw = 3 [default = "\\001\\377"];
  optional double much = 4 [default = -inf];
  optional Kind kind = 5 [default = ALSO_SOME];
  optional bool yes = 6 [default = true];
  repeated int32 packed = 7 [packed = true];
  map<string, All.Inner> inners = 8;
  oneof choice { option (buf.validate.oneof).required = true; string left = 9; Inner right = 10; }
  extend Inner { optional All more = 100; }
  reserved 20, 30 to 40, 536870911; reserved "old", "older";
}
"""

FEATURES_PROTO3 = """\
syntax = "proto3";
package toy;
import "google/protobuf/duration.proto";
import "buf/validate/validate.proto";
message Asked {
  optional int32 maybe = 1 [(buf.validate.field).int32 = {gt: -3, lt: 9}];
  string plain = 2 [(buf.validate.field).cel = {id: "x", message: "say \\"y\\"", expression: "this != '\\\\n'"}];
  repeated google.protobuf.Duration times = 3;
  oneof one { bool first = 4; }
}
service Answers {
  option deprecated = true;
  rpc Ask(Asked) returns (stream Asked) { option idempotency_level = NO_SIDE_EFFECTS; }
  rpc Talk(stream Asked) returns (Asked);
}
"""


# --- generated code ---


def test_every_generated_module_can_be_imported() -> None:
    names = [
        name
        for package in ("harness", "buf")
        for _, name, is_package in pkgutil.walk_packages([str(GENERATED / package)], f"{package}.")
        if not is_package
    ]
    # walk_packages does not enter folders without __init__.py, and generated packages have none.
    names += [".".join(file.relative_to(GENERATED).with_suffix("").parts) for file in GENERATED.rglob("*.py")]
    assert any(name.endswith("_pb2_grpc") for name in names)
    for name in names:
        importlib.import_module(name)


def test_every_contract_has_its_generated_python_with_types() -> None:
    for proto in (ROOT / "proto").rglob("*.proto"):
        base = GENERATED / proto.relative_to(ROOT / "proto").with_suffix("")
        wanted = ["_pb2.py", "_pb2.pyi"]
        if re.search(r"^service ", proto.read_text(), re.MULTILINE):
            wanted += ["_pb2_grpc.py", "_pb2_grpc.pyi"]
        for ending in wanted:
            assert base.with_name(base.name + ending).is_file(), f"{proto}: no generated {ending}"


def test_generated_code_is_not_committed() -> None:
    assert not [
        name for name in _committed() if name.startswith(("gen/", "build/")) or re.search(r"_pb2\b|_pb2_", name)
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own with one toy contract, and our tools."""
    for name in ("buf.yaml", "buf.gen.yaml", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "build_tools", tmp_path / "build_tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "proto/harness/toy/v1").mkdir(parents=True)
    (tmp_path / "proto/harness/toy/v1/toy.proto").write_text(TOY)
    return tmp_path


def test_a_constraint_of_a_contract_is_enforced_on_its_generated_message(project: Path) -> None:
    _succeeds(_tool(project, "build_tools.generate"))
    program = (
        "import protovalidate\n"
        "from harness.toy.v1.toy_pb2 import GetToyRequest\n"
        "for name in ('', 'bear', 'rhinoceros'):\n"
        "    print([v.proto.rule_id for v in protovalidate.collect_violations(GetToyRequest(name=name))])\n"
    )
    # First on the path, and no site-packages path entry of this project's own generated code in between.
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "gen/python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert _succeeds(shown) == "['string.min_len']\n[]\n['string.max_len']\n"


def test_generation_does_nothing_when_nothing_changed_and_repairs_what_did(project: Path) -> None:
    generated = project / "gen/python/harness/toy/v1/toy_pb2.py"
    assert "building" in _succeeds(_tool(project, "build_tools.generate"))
    first = generated.read_text()
    assert _succeeds(_tool(project, "build_tools.generate")) == ""

    generated.write_text("# edited by hand\n")
    assert "building" in _succeeds(_tool(project, "build_tools.generate"))
    assert generated.read_text() == first

    contract = project / "proto/harness/toy/v1/toy.proto"
    contract.rename(contract.with_name("game.proto"))
    _succeeds(_tool(project, "build_tools.generate"))
    assert not generated.exists()
    assert generated.with_name("game_pb2_grpc.py").exists()


def test_an_import_that_no_package_has_is_named_with_its_file(project: Path) -> None:
    contract = project / "proto/harness/toy/v1/toy.proto"
    contract.write_text(TOY.replace("google/api/annotations.proto", "google/nowhere.proto"))
    failed = _tool(project, "build_tools.generate")
    assert failed.returncode == 1
    assert "toy.proto" in failed.stderr
    assert "google/nowhere.proto" in failed.stderr


# --- contracts ---


def test_the_rebuilt_protovalidate_source_compiles_to_the_descriptor_it_was_printed_from() -> None:
    from buf.validate import validate_pb2

    compiled = descriptor_pb2.FileDescriptorProto()
    validate_pb2.DESCRIPTOR.CopyToProto(compiled)
    assert compiled == validate_descriptor()


@pytest.mark.parametrize("source", [FEATURES_PROTO2, FEATURES_PROTO3], ids=["proto2", "proto3"])
def test_printed_source_compiles_to_the_same_descriptor(source: str, tmp_path: Path) -> None:
    # In a process of its own: the custom options of the toy must be in the pool before its descriptor is parsed.
    (tmp_path / "toy.proto").write_text(source)
    compiled = _protoc(tmp_path, "toy.proto", "first.binpb")
    program = (
        "import sys\n"
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "from build_tools.proto_source import print_file\n"
        "import buf.validate.validate_pb2\n"
        "from google.protobuf import duration_pb2\n"
        "def file():\n"
        "    content = open('first.binpb', 'rb').read()\n"
        "    return descriptor_pb2.FileDescriptorSet.FromString(content).file[0]\n"
        "descriptor_pool.Default().AddSerializedFile(file().SerializeToString())\n"
        "print(print_file(file()), end='')\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    (tmp_path / "toy.proto").write_text(_succeeds(printed))
    assert _protoc(tmp_path, "toy.proto", "second.binpb") == compiled


def test_a_descriptor_whose_options_are_unknown_is_refused_rather_than_printed_without_them() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="toy.proto", package="toy")
    # Field 50999, length 1: an extension that nobody here knows.
    file.options.MergeFromString(b"\xba\xf3\x18\x01x")
    with pytest.raises(ValueError, match="would be lost"):
        print_file(file)


def test_every_message_field_enum_service_and_rpc_is_documented(tmp_path: Path) -> None:
    image = tmp_path / "image.binpb"
    built = subprocess.run([BUF, "build", "proto", "-o", image], cwd=ROOT, capture_output=True, text=True, check=False)
    _succeeds(built)
    files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file
    ours = [file for file in files if (ROOT / "proto" / file.name).exists()]
    assert ours
    assert [name for file in ours for name in _undocumented(file)] == []


def test_an_undocumented_field_is_found() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="toy.proto", package="toy")
    message = file.message_type.add(name="Toy")
    message.field.add(name="name", number=1)
    message.nested_type.add(name="Part").field.add(name="size", number=1)
    file.enum_type.add(name="Kind")
    file.service.add(name="Toys").method.add(name="Get")
    for path in ([4, 0], [4, 0, 3, 0], [6, 0]):
        file.source_code_info.location.add(path=path, leading_comments=" What it is.")
    assert list(_undocumented(file)) == ["toy.Toy.name", "toy.Toy.Part.size", "toy.Kind", "toy.Toys.Get"]


def test_without_a_release_tag_there_is_nothing_to_break(project: Path) -> None:
    _commit(project)
    assert "no release tag" in _succeeds(_tool(project, "build_tools.breaking"))


def test_a_change_that_breaks_the_last_release_is_refused_and_an_addition_is_not(project: Path) -> None:
    contract = project / "proto/harness/toy/v1/toy.proto"
    _commit(project)
    _git(project, "tag", "v0.1.0")

    contract.write_text(TOY.replace("int32 weight = 1;", "int32 weight = 1;\n  // Centimetres.\n  int32 height = 2;"))
    assert "v0.1.0" in _succeeds(_tool(project, "build_tools.breaking"))

    contract.write_text(TOY.replace("int32 weight = 1;", "string weight = 1;"))
    broken = _tool(project, "build_tools.breaking")
    assert broken.returncode != 0
    assert '"weight"' in broken.stdout


# --- locks and committed text ---


def test_every_locked_package_has_a_hash_and_no_place_to_come_from() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host", text)
        blocks = _locked(text)
        assert blocks
        for package, block in blocks.items():
            assert "--hash=sha256:" in block, f"{name}: {package} has no hash"


def test_locks_hold_what_the_project_asks_for() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime, everything = (_locked((ROOT / f"requirements{kind}.lock").read_text()) for kind in ("", "-dev"))
    extras = dict(settings["optional-dependencies"])
    # The second stack is tested, and in no image.
    dev = [*extras.pop("dev"), *extras.pop("betterproto")]
    _assert_satisfied(settings["dependencies"] + [line for lines in extras.values() for line in lines], runtime)
    _assert_satisfied(dev, everything)
    assert {name: _version(block) for name, block in runtime.items()}.items() <= {
        name: _version(block) for name, block in everything.items()
    }.items()


def test_no_committed_file_names_a_package_host() -> None:
    # Written in pieces, or this file would be the first to be found.
    hosts = [
        "py" + "pi.org",
        "python" + "hosted",
        "registry." + "npmjs",
        "proxy." + "golang",
        "static." + "crates.io",
        "repo1." + "maven",
        "deb." + "debian.org",
    ]
    found = [
        f"{name}: {host}"
        for name in _committed()
        for host in hosts
        if host in (ROOT / name).read_text(errors="replace")
    ]
    assert found == []


# --- what the tests above are made of ---


def _tool(project: Path, module: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(
        [sys.executable, "-m", module], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def _succeeds(finished: subprocess.CompletedProcess[str]) -> str:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def _git(folder: Path, *arguments: str) -> str:
    # Nothing of the person's own configuration, and not this repository when run from one of its hooks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "safe.directory=*"]
    finished = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return _succeeds(finished)


def _commit(project: Path) -> None:
    _git(project, "init", "--quiet")
    _git(project, "add", "proto")
    _git(project, "commit", "--quiet", "--message", "Add a toy")


def _committed() -> list[str]:
    names = _git(ROOT, "ls-files", "-z").split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def _protoc(folder: Path, name: str, target: str) -> descriptor_pb2.FileDescriptorSet:
    third_party = ROOT / "build" / "third_party"
    arguments = [f"-I{folder}", f"-I{third_party}", f"--descriptor_set_out={folder / target}", name]
    finished = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *arguments], capture_output=True, text=True, check=False
    )
    _succeeds(finished)
    return descriptor_pb2.FileDescriptorSet.FromString((folder / target).read_bytes())


def _undocumented(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """Full names of what has no leading comment; paths are those of SourceCodeInfo.Location."""
    documented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}

    def walk_message(
        message: descriptor_pb2.DescriptorProto, path: tuple[int, ...], scope: str
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        if message.options.map_entry:
            return
        name = f"{scope}.{message.name}"
        yield path, name
        for index, field in enumerate(message.field):
            yield (*path, 2, index), f"{name}.{field.name}"
        for index, nested in enumerate(message.nested_type):
            yield from walk_message(nested, (*path, 3, index), name)
        for index, enum in enumerate(message.enum_type):
            yield (*path, 4, index), f"{name}.{enum.name}"

    def walk() -> Iterator[tuple[tuple[int, ...], str]]:
        for index, message in enumerate(file.message_type):
            yield from walk_message(message, (4, index), file.package)
        for index, enum in enumerate(file.enum_type):
            yield (5, index), f"{file.package}.{enum.name}"
        for index, service in enumerate(file.service):
            yield (6, index), f"{file.package}.{service.name}"
            for position, method in enumerate(service.method):
                yield (6, index, 2, position), f"{file.package}.{service.name}.{method.name}"

    return (name for path, name in walk() if path not in documented)


def _locked(text: str) -> dict[str, str]:
    """Each locked package's block of lines, by its canonical name."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    return {canonicalize_name(re.split(r"[=\[]", block, maxsplit=1)[0]): block for block in blocks if block.strip()}


def _version(block: str) -> str:
    return block.split("==", 1)[1].split()[0]


def _assert_satisfied(lines: list[str], locked: dict[str, str]) -> None:
    for line in lines:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name == "harness-mesh":
            continue
        assert name in locked, f"{line} is in pyproject.toml and not in the lock: run `make lock`"
        assert requirement.specifier.contains(_version(locked[name]), prereleases=True), f"the lock does not fit {line}"
