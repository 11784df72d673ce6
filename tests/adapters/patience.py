"""Which calls a runtime makes again to a facade that is there and says that it cannot answer: the same in every language (tool broker and thread state
contracts).
"""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from adapters.sdk.testing import kinds
from harness.event.v1 import payload_pb2
from services.common.errors import HarnessError, Reason
from tests.adapters.tool_broker import TOKEN, brokered, success, tool

AWAY = HarnessError(Reason.STORE_UNAVAILABLE, "The store cannot answer now.", retry_after=1.0)
REFUSED = HarnessError(Reason.UNAVAILABLE, "Not here, and not later either.", retryable=False)


class Connects(Protocol):
    """Makes a client of the adapter."""

    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[Any]: ...


async def check_patience(client_of: Connects) -> None:
    """A call that a facade refuses for now is made again, one that it refuses for good is not, and the run goes on."""
    script = [{"tool": {"id": call_id, "name": "add", "arguments": {"n": 1}}} for call_id in ("for-now", "for-good")]
    # Were the last call made again, it would find a success.
    answers: list[Any] = [AWAY, AWAY, success(1), REFUSED, success(2)]
    async with (
        brokered(add=answers) as broker,
        client_of(tools=[tool("add")], tool_address=broker.address) as client,
    ):
        drafts = await client.turn(json.dumps({"script": script}), tool_token=TOKEN)
    assert [called[0] for called in broker.calls] == ["for-now"] * 3 + ["for-good"]
    assert kinds(drafts)[-1] == "run.completed"
    ended = [draft.payload.tool_completed for draft in drafts if draft.payload.HasField("tool_completed")]
    assert [one.outcome for one in ended] == [payload_pb2.TOOL_OUTCOME_SUCCESS, payload_pb2.TOOL_OUTCOME_ERROR]
    assert not ended[1].error.retryable
