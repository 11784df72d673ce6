"""Capability tokens of the kit's own making: one per run and facade, good for exactly the fence it was made with."""

from dataclasses import dataclass, field
from typing import Any

from conformance.plane.canary import Canaries
from harness.common.v1 import fence_pb2


@dataclass
class FacadeCall:
    """One call of the target to a facade, as it came."""

    method: str
    fence: fence_pb2.Fence
    # What was wrong with the token or the fence; empty: nothing.
    fault: str = ""
    # Whether it has not ended yet.
    open: bool = True


@dataclass
class Grant:
    """What a token opens: one facade, one run, and the thread or tools behind it."""

    audience: str
    fence: fence_pb2.Fence
    # The thread of the binding, or its tools.
    behind: Any
    calls: list[FacadeCall] = field(default_factory=list[FacadeCall])


class Grants:
    """All tokens of one certification."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries
        self._grants: dict[str, Grant] = {}
        # Calls without a token that was ever given out.
        self.strangers: list[FacadeCall] = []

    def issue(self, audience: str, fence: fence_pb2.Fence, behind: Any) -> tuple[str, Grant]:
        """A token for the facade `audience`, and what was noted of its use."""
        grant = Grant(audience, fence, behind)
        token = self._canaries.plant(f"{audience}-token")
        self._grants[token] = grant
        return token, grant

    def calls_of(self, binding_id: str) -> list[FacadeCall]:
        """All calls with tokens of a binding's runs, to whichever facade."""
        return [call for grant in self._grants.values() if grant.fence.binding_id == binding_id for call in grant.calls]

    def admit(self, audience: str, method: str, fence: fence_pb2.Fence, context: Any) -> tuple[Grant | None, str]:
        """The grant of a call, and what is wrong with the call; it is noted either way (worker protocol, Fence)."""
        metadata = context.invocation_metadata()
        bearer = next((str(value) for key, value in metadata or () if key == "authorization"), "")
        grant = self._grants.get(bearer.removeprefix("Bearer "))
        noted = fence_pb2.Fence()
        noted.CopyFrom(fence)
        if grant is None or not bearer.startswith("Bearer "):
            self.strangers.append(FacadeCall(method, noted, "no token of this certification"))
            return None, self.strangers[-1].fault
        fault = f"a token of audience {grant.audience!r}" if grant.audience != audience else _fault(grant.fence, fence)
        call = FacadeCall(method, noted, fault)
        grant.calls.append(call)

        def ended(_: Any) -> None:
            call.open = False

        context.add_done_callback(ended)
        return grant, fault


def _fault(expected: fence_pb2.Fence, given: fence_pb2.Fence) -> str:
    names = ("protocol_version", "binding_id", "epoch", "runtime_generation", "turn", "run_id")
    wrong = [name for name in names if getattr(given, name) != getattr(expected, name)]
    # A takeover raises the generation while the token stays.
    if given.run_generation < expected.run_generation:
        wrong.append("run_generation")
    return f"the fence's {', '.join(wrong)}" if wrong else ""
