"""A protoc plugin that writes `*_pb2_grpc.py`.

buf can call protoc's own Python generator, but gRPC's is compiled into `grpc_tools.protoc` and has no plugin program.
This one passes the descriptors it is given on to it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2


def generate(request: plugin_pb2.CodeGeneratorRequest) -> plugin_pb2.CodeGeneratorResponse:
    """The gRPC files for those of `request.file_to_generate` that define a service."""
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with_services = {file.name for file in request.proto_file if file.service}
    names = [name for name in request.file_to_generate if name in with_services]
    if not names:
        return response
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        out.mkdir()
        descriptors = Path(folder, "descriptors.binpb")
        descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=request.proto_file).SerializeToString())
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
        options = [f"--descriptor_set_in={descriptors}", f"--grpc_python_out={out}"]
        finished = subprocess.run([*protoc, *options, *names], stdout=sys.stderr, check=False)
        if finished.returncode != 0:
            response.error = f"grpc_tools.protoc ended with status {finished.returncode}; its message is above"
            return response
        for file in sorted(out.rglob("*.py")):
            response.file.add(name=file.relative_to(out).as_posix(), content=file.read_text())
    return response


def main() -> None:
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(generate(request).SerializeToString())


if __name__ == "__main__":
    main()
