"""The reference adapter under another id: `NEIGHBOUR=flooding python -m tests.conformance.neighbour --listen ADDRESS`."""

import os

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.serve import run_adapter_main
from harness.adapter.v1 import descriptor_pb2


class NeighbourAdapter(ReferenceAdapter):
    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        named = descriptor_pb2.Descriptor()
        named.CopyFrom(super().descriptor)
        named.harness_id = os.environ["NEIGHBOUR"]
        return named


if __name__ == "__main__":
    run_adapter_main(NeighbourAdapter, "tests.conformance.neighbour")
