"""Lay out the `.proto` files of others that our contracts import, from installed packages alone.

`google/**` is a file in the googleapis-common-protos wheel and is copied. `buf/validate/validate.proto` is in no wheel
as a file: its source is printed from the descriptor that protovalidate carries, so it always fits the validator that
runs. What goes into buf's second module is only what `proto/` imports, directly or not, so nothing else is compiled.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    timestamp_pb2,
)

from build_tools.proto_source import print_file

_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"\s*;', re.MULTILINE)
_VALIDATE = "buf/validate/validate.proto"
# Always laid out: protovalidate's interceptor needs its Python, and ErrorInfo and friends their source.
_ALWAYS = (_VALIDATE, "google/rpc/error_details.proto", "google/rpc/status.proto")


def lay_out(proto_root: Path, target: Path) -> None:
    """Write under `target` every third-party file that the sources under `proto_root` need.

    Raises FileNotFoundError, naming the importing file, for an import that no installed package has.
    """
    sources = _needed(proto_root)
    for name, text in sources.items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # A rewritten file with the same text would look changed to buf and to make.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in target.rglob("*.proto"):
        if file.relative_to(target).as_posix() not in sources:
            file.unlink()


def _needed(proto_root: Path) -> dict[str, str]:
    wanted = [(name, "the build") for name in _ALWAYS]
    for file in sorted(proto_root.rglob("*.proto")):
        wanted += [(name, str(file)) for name in _IMPORT.findall(file.read_text())]
    sources: dict[str, str] = {}
    while wanted:
        name, importer = wanted.pop()
        # google/protobuf/* is built into buf and protoc.
        ours = name.startswith("google/protobuf/") or (proto_root / name).exists()
        if name in sources or ours:
            continue
        sources[name] = _source(name, importer)
        wanted += [(imported, name) for imported in _IMPORT.findall(sources[name])]
    return sources


def _source(name: str, importer: str) -> str:
    if name == _VALIDATE:
        return validate_source()
    if name.startswith("google/"):
        packaged = Path(str(distribution("googleapis-common-protos").locate_file(name)))
        if packaged.is_file():
            return packaged.read_text()
    raise FileNotFoundError(
        f'{importer} imports "{name}", which is neither under proto/ nor in googleapis-common-protos nor protovalidate: '
        "correct the import, or add the package that has it to build_tools/third_party.py"
    )


def validate_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Descriptor of buf/validate/validate.proto as the installed protovalidate knows it, its own options resolved."""
    # protovalidate does not export its descriptor; the layout is held by the version in the lock file.
    from protovalidate._gen.buf.validate import validate_pb

    serialized = validate_pb.desc().proto.to_binary()
    # The file uses options that it defines itself: they parse as unknown bytes until the pool has them. The imports
    # of the three well-known types above put those into the pool first.
    pool = descriptor_pool.Default()
    for dependency in (duration_pb2, field_mask_pb2, timestamp_pb2):
        pool.FindFileByName(dependency.DESCRIPTOR.name)
    pool.AddSerializedFile(serialized)
    return descriptor_pb2.FileDescriptorProto.FromString(serialized)


def validate_source() -> str:
    """Source of buf/validate/validate.proto, rebuilt."""
    return print_file(validate_descriptor())
