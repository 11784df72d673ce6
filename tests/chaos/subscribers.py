"""Those who watch runs: through every gateway and over gRPC, leaving and coming back with what they saw last, some of them slow."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
import httpx

from harness.run.v1 import run_service_pb2
from tests.chaos.mesh import ChaosMesh
from tests.chaos.recorded import Recorded, Seen

RETRYABLE: Final = {409, 429, 503, 504}
AT_ONCE: Final = 40
SILENT_SECONDS: Final = 20.0
"""Without a byte for so long a subscriber dials again: a stopped process says nothing."""


@dataclass(slots=True)
class Subscribers:
    """All subscribers of one campaign. `give_up_at` bounds how long anybody waits for the end of a run, monotonic seconds."""

    mesh: ChaosMesh
    recorded: Recorded
    subject: str
    client: httpx.AsyncClient
    watching: dict[asyncio.Task[None], Seen] = field(default_factory=dict[asyncio.Task[None], Seen])
    give_up_at: float = float("inf")

    def watch(self, run_id: str, dice: random.Random) -> None:
        """One more subscriber, if there is room."""
        if len(self.watching) >= AT_ONCE:
            return
        over = "grpc" if dice.random() < 0.25 else "sse"
        seen = self.recorded.new_watcher(run_id, over)
        work = self._over_grpc(seen, dice) if over == "grpc" else self._over_sse(seen, dice)
        task = asyncio.create_task(work)
        self.watching[task] = seen
        task.add_done_callback(lambda task: self.watching.pop(task, None))

    async def finish(self, seconds: float) -> None:
        """Returns once everybody saw the end of what they watch; those who do not in time are a violation."""
        if not self.watching:
            return
        _, late = await asyncio.wait(set(self.watching), timeout=seconds)
        for task in late:
            seen = self.watching[task]
            self.recorded.complain(
                f"I7: a subscriber of {seen.run_id} over {seen.over} saw no end within {seconds:g} s, only {seen.last} ({seen.last_type})"
            )
            task.cancel()

    async def replay(self, run_id: str, url: str) -> None:
        """A run that has ended, from its beginning through one gateway; what that shows is compared with what others saw (I8)."""
        seen = self.recorded.new_watcher(run_id)
        for _ in range(20):
            try:
                async with self.client.stream("GET", _stream_of(url, run_id), headers=_after(seen)) as response:
                    if response.status_code == 200:
                        await _read(response, seen, leave_after=1 << 30, pause=0.0)
                    elif response.status_code not in RETRYABLE:
                        seen.wrong.append(f"replay: {response.status_code} {(await response.aread())[:200]!r}")
                        return
            except httpx.TransportError:
                pass  # a fault is still being undone; it goes on where it was
            if seen.ended:
                return
            await asyncio.sleep(0.25)
        seen.wrong.append(f"I7: a replay of {run_id} ends at {seen.last} ({seen.last_type})")

    async def _over_sse(self, seen: Seen, dice: random.Random) -> None:
        pause = 0.4 if dice.random() < 0.15 else 0.0  # I14: a slow one
        while not seen.ended and time.monotonic() < self.give_up_at:
            leave_after = dice.choice((1, 3, 10, 1000, 1000))
            seen.connections += 1
            try:
                async with self.client.stream(
                    "GET", _stream_of(dice.choice(self.mesh.urls), seen.run_id), headers=_after(seen),
                    timeout=httpx.Timeout(SILENT_SECONDS),
                ) as response:  # fmt: skip
                    if response.status_code == 200:
                        await _read(response, seen, leave_after, pause)
                    elif response.status_code not in RETRYABLE:
                        seen.wrong.append(f"{response.status_code} {(await response.aread())[:200]!r}")
                        return
            except httpx.TransportError:
                pass  # the gateway died or stands still; the next turn asks again
            await asyncio.sleep(0.05 + dice.random() * 0.3)

    async def _over_grpc(self, seen: Seen, dice: random.Random) -> None:
        while not seen.ended and time.monotonic() < self.give_up_at:
            member = dice.choice(self.mesh.members("runs"))
            leave_after = dice.choice((1, 3, 10, 1000, 1000))
            seen.connections += 1
            request = run_service_pb2.WatchRunRequest(run_id=seen.run_id, after=seen.last)
            async with self.mesh.stub_of(member) as stub:
                call = stub.WatchRun(request, metadata=self.mesh.metadata(self.subject), timeout=SILENT_SECONDS)
                try:
                    async for response in call:
                        seen.take_events(response)
                        leave_after -= len(response.events)
                        if leave_after <= 0 and not seen.ended:
                            break
                except grpc.aio.AioRpcError as error:
                    if error.code() in (
                        grpc.StatusCode.NOT_FOUND,
                        grpc.StatusCode.INTERNAL,
                        grpc.StatusCode.OUT_OF_RANGE,
                    ):
                        seen.wrong.append(f"over grpc: {error.code().name} {error.details()}")
                        return
                finally:
                    call.cancel()
            await asyncio.sleep(0.05 + dice.random() * 0.3)


def _stream_of(url: str, run_id: str) -> str:
    return f"{url}/api/v1/runs/{run_id}/events/stream"


def _after(seen: Seen) -> dict[str, str]:
    return {"Last-Event-ID": str(seen.last)} if seen.last else {}


async def _read(response: httpx.Response, seen: Seen, leave_after: int, pause: float) -> None:
    buffer = b""
    async for chunk in response.aiter_raw():
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            frame, buffer = buffer[: end + 2], buffer[end + 2 :]
            if b"event: " in frame and not frame.startswith(b":"):
                seen.take(frame)
                leave_after -= 1
        if leave_after <= 0 and not seen.ended:
            return
        if pause:
            await asyncio.sleep(pause)
