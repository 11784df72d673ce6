"""Random schedules of everything a control plane does to one run: whatever the order, what it reads is one unbroken log (I7, I9, I19)."""

import asyncio
import random
from typing import Any

import grpc
import pytest

from adapters.sdk import events
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.lifecycle import RunLifecycle
from adapters.sdk.testing import END, kinds, served
from harness.runtime.v1 import runtime_pb2
from tests.adapters.scripted import SteeredAdapter


class Executors:
    """Executors of one run, one after the other: each reads, stores, acknowledges, loses its stream, is replaced, or cancels."""

    def __init__(self, client, chance: random.Random) -> None:
        self.client = client
        self.chance = chance
        self.generation = 1
        # What is durable: the log. It survives every executor.
        self.log: list = []
        self.call: Any = None
        self.cancelled = False

    @property
    def fence(self):
        return self.client.fence(1, "run", self.generation)

    def open(self) -> None:
        if self.call is not None:
            self.call.cancel()
        if self.log or self.chance.random() < 0.5:
            self.call = self.client.attach(self.fence, len(self.log))
        else:
            self.call = self.client.start(self.fence, self.turn)

    async def read(self) -> bool:
        """Stores what comes next; False at the end of the stream."""
        response = await self.call.read()
        if response is END:
            return False
        batch = response.batch
        assert not batch.drafts or batch.first_offset <= len(self.log) + 1
        for offset, draft in enumerate(batch.drafts, batch.first_offset):
            if offset > len(self.log):
                self.log.append(draft)
            else:
                # What was seen once is the same at every later reading (I8).
                assert draft == self.log[offset - 1]
        return True

    async def step(self) -> None:
        action = self.chance.choice(
            ["read", "read", "read", "ack", "ack", "lose", "replace", "stale", "again", "cancel"]
        )
        if action == "read":
            if self.call is None:
                self.open()
            try:
                async with asyncio.timeout(0.05):
                    if not await self.read():
                        self.call = None
            except TimeoutError:
                self.call = None
        elif action == "ack":
            await self.client.ack(self.fence, self.chance.randint(0, len(self.log)))
        elif action == "lose" and self.call is not None:
            self.call.cancel()
            self.call = None
        elif action == "replace":
            self.generation += self.chance.randint(1, 2)
            await self.client.ack(self.fence, len(self.log))
            self.open()
        elif action == "stale" and self.generation > 1:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await self.client.ack(self.client.fence(1, "run", self.generation - 1), len(self.log))
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        elif action == "again":
            self.open()
        elif action == "cancel" and self.chance.random() < 0.2:
            await self.client.cancel(self.fence)
            self.cancelled = True

    turn: runtime_pb2.TurnInput


def make_play(chance: random.Random):
    async def play(turn):
        for number in range(chance.randint(0, 60)):
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
            if chance.random() < 0.1:
                yield events.tool_started(f"c{number}", "t")
            yield events.text(f"{number} ")
        if chance.random() < 0.2:
            raise RuntimeError("now and then")
        if chance.random() < 0.9:
            yield events.completed()

    return play


@pytest.mark.parametrize("seed", range(20))
async def test_i7_i9_any_schedule_reads_one_unbroken_lifecycle(seed):
    chance = random.Random(seed)
    adapter = SteeredAdapter(make_play(random.Random(seed + 1000)))
    async with served(lambda: adapter, limits=HostLimits(stop_seconds=0.5)) as client:
        client.limits = runtime_pb2.RuntimeLimits(max_unacked_events=chance.choice([3, 10, 1000]))
        await client.create()
        executors = Executors(client, chance)
        executors.turn = client.input("x")
        # The first StartRun is on its way before anything else happens.
        executors.call = client.start(executors.fence, executors.turn)
        await executors.read()
        for _ in range(40):
            await executors.step()
        # The last executor sees it through.
        executors.generation += 1
        executors.call = client.attach(executors.fence, len(executors.log))
        while await executors.read():
            await client.ack(executors.fence, len(executors.log))
        assert len(adapter.turns) == 1
        lifecycle = RunLifecycle()
        assert [entry for draft in executors.log for entry in lifecycle.accept(draft)] == executors.log
        assert lifecycle.ended
        assert executors.cancelled or kinds(executors.log)[-1] in ("run.completed", "run.failed")
