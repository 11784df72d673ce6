"""Who may ask: a run that holds its conversation now, with the runtime its token was made for (worker protocol, Fence; I28, I35)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from services.common.caller import Capability
from services.common.capability_token import CapabilityVerifier
from services.common.errors import HarnessError, Reason
from services.egress.endpoints import Endpoint
from services.egress.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Holder:
    """Which run holds the conversation of a binding, with which generation of its runtime; no run: an empty id."""

    epoch: int
    run_id: str
    runtime_generation: int


HolderOf = Callable[[str], Awaitable[Holder]]
"""The holder of a binding, by its id. Raises `HarnessError`, `NOT_FOUND` for a binding that is none."""


class Admission:
    """Lets requests in, and counts those at work."""

    def __init__(
        self,
        verifier: CapabilityVerifier,
        holder_of: HolderOf,
        endpoints: Mapping[str, Endpoint],
        *,
        limit: int,
        limit_of_run: int,
        look_again_seconds: float,
    ) -> None:
        self._verifier = verifier
        self._holder_of = holder_of
        self._endpoints = endpoints
        self._limit = limit
        self._limit_of_run = limit_of_run
        self._look_again_seconds = look_again_seconds
        self._of_run: Counter[str] = Counter()

    @property
    def at_work(self) -> int:
        """Requests at work now."""
        return self._of_run.total()

    def capability(self, token: str) -> Capability:
        """What a request's token opens. Raises `Refusal` for one that is missing, wrong or over."""
        try:
            return self._verifier.verify(token)
        except HarnessError as error:
            raise Refusal(401, f"{error.message} Send the run's token for the model.") from None

    async def endpoint(self, capability: Capability) -> Endpoint:
        """The endpoint that the token names, if its run is still the one that holds the conversation. Raises `Refusal`."""
        endpoint = self._endpoints.get(capability.model_endpoint)
        if endpoint is None:
            raise Refusal(403, "The token names no model endpoint of this mesh.")
        try:
            holder = await self._holder_of(capability.binding_id)
        except HarnessError as error:
            if error.reason == Reason.NOT_FOUND:
                raise _over() from None
            raise Refusal(503, "Whether the run goes on cannot be looked up now.", again=True) from None
        # I10, I27: a token is worth nothing once the run, or its runtime, was replaced.
        wanted = Holder(capability.epoch, capability.run_id, capability.runtime_generation)
        if holder != wanted:
            raise _over()
        return endpoint

    async def until_over(self, token: str) -> None:
        """Raises `Refusal` once the token is over or its run does not hold its conversation any more; never returns. That nobody can say so now
        ends nothing.
        """
        while True:
            await asyncio.sleep(self._look_again_seconds)
            try:
                await self.endpoint(self.capability(token))
            except Refusal as refusal:
                if not refusal.again:
                    raise

    @contextmanager
    def place(self, run_id: str) -> Generator[None]:
        """A place among the requests at work. Raises `Refusal` where there is none."""
        if self.at_work >= self._limit:
            raise Refusal(529, "All places for requests to models are taken; ask again.", again=True)
        if self._of_run[run_id] >= self._limit_of_run:
            raise Refusal(429, f"This run has {self._limit_of_run} requests to models at work already.", again=True)
        self._of_run[run_id] += 1
        try:
            yield
        finally:
            self._of_run[run_id] -= 1
            if not self._of_run[run_id]:
                del self._of_run[run_id]


def _over() -> Refusal:
    return Refusal(403, "The run of this token does not hold its conversation any more.")
