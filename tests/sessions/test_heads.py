"""The bound of a head, on the domain alone: over the wire it takes a thousand parts (I35)."""

from typing import Any

import pytest

from services.common.errors import HarnessError, Reason
from services.sessions import head, turn
from services.sessions.binding import BindingDocument, new_epoch
from services.sessions.head import MAX_HEAD_PARTS, Pending
from services.sessions.runtime_fence import Fence

PIN: Any = {"agent_version": 1, "harness_id": "h", "profile_id": "p"}


def _with_head(parts: int) -> BindingDocument:
    conversation: Any = {"owner_id": "own_1", "agent_id": "a", "conversation_id": "c"}
    document = new_epoch(conversation, "bnd_1", 1, 0)
    document, _ = turn.reserve(document, turn.Reservation("r1", "k1", "reject", PIN), 1, 1)
    part_refs = [f"old{n}" for n in range(parts)]
    return {
        **document,
        "head": {"revision": 7, "run_id": "r0", "part_refs": part_refs, "codec": "c.v1", "outcome": ""},
    }


def test_i35_a_head_grows_to_its_bound_and_can_be_replaced_there() -> None:
    fence = Fence(1, "bnd_1", 1, 1, 1, "r1", 1)
    written = {"new1": "c.v1", "new2": "c.v1"}
    document = _with_head(MAX_HEAD_PARTS - 1)
    grown, revision = head.commit(document, fence, Pending(["new1"], False), written, "", 2)
    assert revision == 8
    assert grown["head"] is not None
    assert len(grown["head"]["part_refs"]) == MAX_HEAD_PARTS
    with pytest.raises(HarnessError, match="at most 1024") as caught:
        head.commit(document, fence, Pending(["new1", "new2"], False), written, "", 2)
    assert caught.value.reason is Reason.CAPACITY
    assert not caught.value.retryable
    replaced, _ = head.commit(document, fence, Pending(["new1", "old3"], True), written, "", 2)
    assert replaced["head"] is not None
    assert replaced["head"]["part_refs"] == ["new1", "old3"]
