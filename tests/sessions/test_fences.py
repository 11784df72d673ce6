"""Every call that changes something for a run is refused unless every part of its fence is the committed one (worker protocol, "Fence")."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.session.v1.session_service_pb2 import GetBindingRequest
from harness.session.v1.session_service_pb2_grpc import SessionServiceStub
from harness.state.v1.thread_state_service_pb2 import LoadHeadRequest
from harness.state.v1.thread_state_service_pb2_grpc import ThreadStateServiceStub
from services.common.errors import Reason
from tests.sessions.processes import ENQUEUE, Client, fence_of, refused, token_of

Call = Callable[[Client, Any], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "AdvanceRuntime": lambda client, fence: client.advance(fence),
    "RecordRuntime": lambda client, fence: client.record_runtime(fence, "inc2"),
    "RecordNativeSession": lambda client, fence: client.record_session(fence, "native-2"),
    "CommitHead": lambda client, fence: client.commit(fence, []),
    "LoadHead": lambda client, fence: client.load(fence),
    "WriteParts": lambda client, fence: client.write(fence, "k", b"content"),
    "MarkUncertain": lambda client, fence: client.mark_uncertain(fence),
}
NUMBERS = ("epoch", "runtime_generation", "turn", "run_generation")


async def _prepared(client: Client) -> Any:
    """A binding all of whose numbers are above one, with a run in the slot and one in the line; its current fence."""
    binding = await client.granted("r1")
    await client.release(binding.binding_id, "r1")
    await client.begin_clear()
    assert await client.finish_clear(binding.binding_id) == 2
    other = await client.granted("r9", conversation="c9")
    binding = await client.granted("r2")
    await client.release(binding.binding_id, "r2")
    await client.granted("r3")
    await client.reserve("r4", policy=ENQUEUE)
    binding = await client.claim(binding.binding_id, "r3", 5)
    fence = fence_of(binding)
    assert (fence.epoch, fence.runtime_generation, fence.turn, fence.run_generation) == (2, 2, 3, 5)
    return fence, other.binding_id


async def _state(client: Client, fence: Any) -> tuple[Any, Any]:
    return await client.find(), [bytes(piece.chunk) for piece in await client.load(fence)]


@pytest.mark.parametrize("name", CALLS)
async def test_i10_each_part_of_the_fence_counts(client: Client, name: str) -> None:
    fence, other_binding_id = await _prepared(client)
    before = await _state(client, fence)
    old_epoch = (await client.get(fence.binding_id)).binding
    assert not old_epoch.HasField("head")
    changes: list[dict[str, Any]] = [{part: getattr(fence, part) + step} for part in NUMBERS for step in (-1, 1)]
    changes += [{"run_id": "r4"}, {"run_id": "r2"}, {"run_id": ""}, {"binding_id": other_binding_id}]
    for change in changes:
        stale = fence_of(await client.find(), **change)
        error = await refused(CALLS[name](client, stale))
        assert error.retryable is (change == {"run_generation": 4})
        assert await _state(client, fence) == before, change
    assert (await client.find("c9")).active.run_id == "r9"
    # The same call under the current fence passes: it was the fence that counted.
    await CALLS[name](client, fence)


@pytest.mark.parametrize("name", CALLS)
async def test_another_protocol_version_is_refused(client: Client, name: str) -> None:
    fence, _ = await _prepared(client)
    before = await _state(client, fence)
    await refused(CALLS[name](client, fence_of(await client.find(), protocol_version=2)), Reason.WORKER_MISMATCH)
    assert await _state(client, fence) == before


@pytest.mark.parametrize("name", CALLS)
async def test_an_unknown_binding(client: Client, name: str) -> None:
    fence, _ = await _prepared(client)
    facade = name in ("LoadHead", "WriteParts", "MarkUncertain")
    unknown = fence_of(await client.find(), binding_id="bnd_unknown")
    error = await refused(CALLS[name](client, unknown), Reason.STALE_LEASE if facade else Reason.NOT_FOUND)
    if facade:  # I28: a runtime is told the same as for its own binding
        assert error.message == (await refused(CALLS[name](client, fence_of(await client.find(), epoch=1)))).message
    assert fence.binding_id not in error.message


@pytest.mark.parametrize("name", CALLS)
async def test_i5_nothing_of_an_old_epoch_is_accepted(client: Client, name: str) -> None:
    binding = await client.granted("r1")
    fence = fence_of(binding)
    await client.begin_clear()
    closing = await client.find()
    if name != "RecordRuntime":
        await refused(CALLS[name](client, fence))
        assert await client.find() == closing
    await client.release(binding.binding_id, "r1")
    await client.finish_clear(binding.binding_id)
    archived = await client.get(binding.binding_id)
    assert archived.archived
    for run_id in ("", "r2"):
        if run_id:
            await client.granted(run_id)
        now = await client.find()
        await refused(CALLS[name](client, fence))
        assert await client.find() == now
        assert await client.get(binding.binding_id) == archived


@pytest.mark.parametrize("name", CALLS)
async def test_i10_nothing_is_accepted_of_a_run_that_left_the_slot(client: Client, name: str) -> None:
    binding = await client.granted("r1")
    fence = fence_of(binding)
    await client.release(binding.binding_id, "r1")
    before = await client.find()
    await refused(CALLS[name](client, fence))
    assert await client.find() == before


@pytest.mark.parametrize("name", ["LoadHead", "WriteParts", "MarkUncertain"])
async def test_i28_a_token_opens_what_it_says_and_nothing_else(client: Client, name: str) -> None:
    fence, other_binding_id = await _prepared(client)
    before = await _state(client, fence)

    async def call(token: str) -> Any:
        match name:
            case "LoadHead":
                return await client.load(fence, token)
            case "WriteParts":
                return await client.write(fence, "k", b"content", token=token)
            case _:
                return await client.mark_uncertain(fence, token)

    for change in (
        {"binding_id": other_binding_id},
        {"epoch": fence.epoch - 1},
        {"epoch": fence.epoch + 1},
        {"runtime_generation": fence.runtime_generation - 1},
        {"runtime_generation": fence.runtime_generation + 1},
        {"run_id": "r2"},
    ):
        await refused(call(token_of(fence, **change)))
        assert await _state(client, fence) == before, change
    await refused(call(token_of(fence, audience="tool")), Reason.UNAUTHENTICATED)
    await refused(call("service-token-of-the-tests"), Reason.UNAUTHENTICATED)
    await call(token_of(fence))


async def test_each_service_is_on_its_own_listener_alone(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    facade_on_internal: Any = ThreadStateServiceStub(client.peer.channel)
    stream = client.peer.stream(facade_on_internal.LoadHead, LoadHeadRequest(fence=fence), timeout=60)
    await refused(anext(stream), Reason.UNIMPLEMENTED)
    internal_on_facade: Any = SessionServiceStub(client.worker.channel)
    request = GetBindingRequest(binding_id=fence.binding_id)
    call = client.worker.call(internal_on_facade.GetBinding, request, credential=token_of(fence))
    await refused(call, Reason.UNIMPLEMENTED)


async def test_i27_an_advance_whose_answer_was_lost_is_repeated_by_its_executor_alone(client: Client) -> None:
    fence, _ = await _prepared(client)
    advanced = await client.advance(fence)
    assert advanced.runtime_generation == fence.runtime_generation + 1
    assert await client.advance(fence) == advanced
    await client.claim(fence.binding_id, "r3", 6)
    before = await client.find()
    # The one it was taken from, and the one that took it: neither has asked for this before.
    assert (await refused(client.advance(fence))).retryable
    await refused(client.advance(fence_of(before, runtime_generation=fence.runtime_generation)))
    assert await client.find() == before
