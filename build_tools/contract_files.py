"""Which files the contracts are."""

from pathlib import Path
from typing import Final

PROTO: Final = Path(__file__).resolve().parent.parent / "proto"


def contract_files() -> list[str]:
    """Every .proto file below proto/, by its import name, packages in order, files of resources before those of services."""
    names = [path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto")]
    return sorted(names, key=lambda name: (Path(name).parent.as_posix(), name.endswith("_service.proto"), name))
