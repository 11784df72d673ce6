"""The facade addresses of a runtime context, as its sandbox sees them (worker protocol, "Facades")."""

from collections.abc import Mapping

from harness.runtime.v1 import runtime_pb2


def facade_addresses(context: runtime_pb2.RuntimeContext) -> dict[str, str]:
    """Audience to address, as the control plane gave them."""
    return {endpoint.audience: endpoint.address for endpoint in context.facades}


def seen_from_inside(context: runtime_pb2.RuntimeContext, addresses: Mapping[str, str]) -> runtime_pb2.RuntimeContext:
    """A copy with the addresses of `addresses`; an audience that is not among them is left out, since it cannot be reached."""
    inside = runtime_pb2.RuntimeContext()
    inside.CopyFrom(context)
    del inside.facades[:]
    for endpoint in context.facades:
        if endpoint.audience in addresses:
            inside.facades.add(audience=endpoint.audience, address=addresses[endpoint.audience])
    return inside
