"""A seeded storm over a whole mesh: everything clients may do, at once, while its processes are killed and stopped at random moments.

`python -m tests.e2e.storm --seed 7 --seconds 120 --replicas 2 --sandboxed 0.1` runs one for longer than a test may take. What the mesh
answered and what watchers saw is kept, and judged at the end by `tests.e2e.storm_checks`. The seed decides what is done, not how the
processes interleave.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.storm_checks import Recorded, Seen, StoredMesh, violations_of
from tests.e2e.turns import save_agent
from tests.support.mesh import TOKEN, RunningMesh, running_mesh

SUBJECT = "storm"
FAULTY = ("runs", "sessions", "catalog", "adapter-reference", "gateway", "bus", "sandbox")
SETTLE_SECONDS = 90.0
RETRYABLE = {409, 429, 503, 504}
"""What a start, cancel or clear may be answered with in a storm, besides success and a run that is not there yet."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How a storm is made."""

    seed: int
    seconds: float
    clients: int = 12
    conversations: int = 6
    sandboxed: float = 0.0
    """Share of the agents that run in sandboxes."""
    calm: float = 1.2
    """Mean seconds between two faults."""
    stall: float = 7.0
    """Longest stop of a process, seconds; the lease is five."""
    second_replica: bool = False


@dataclass(slots=True)
class Target:
    """A process that faults may meet; `find` is its pid now, 0 while there is none."""

    name: str
    find: Callable[[], int]


@dataclass(slots=True)
class Storm:
    """One storm. `blow` runs it and returns what it found wrong."""

    weather: Weather
    mesh: RunningMesh
    random: random.Random
    recorded: Recorded = field(default_factory=lambda: Recorded({}))
    targets: list[Target] = field(default_factory=list[Target])
    urls: list[str] = field(default_factory=list[str])
    agents: list[str] = field(default_factory=list[str])
    talks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    runs: list[str] = field(default_factory=list[str])
    watching: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    stopped: set[int] = field(default_factory=set[int])
    faults: list[str] = field(default_factory=list[str])
    until: float = 0.0

    async def blow(self) -> list[str]:
        """The storm and the calm after it."""
        weather = self.weather
        self.until = time.monotonic() + weather.seconds
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": SUBJECT},
            timeout=httpx.Timeout(45, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ) as client:
            for number in range(weather.conversations):
                self._new_talk(number)
            async with asyncio.TaskGroup() as group:
                for _ in range(weather.clients):
                    group.create_task(self._client(client, random.Random(self.random.random())))
                group.create_task(self._faults(random.Random(self.random.random())))
            await self._calm_down(client)
        return violations_of(StoredMesh(self.mesh.data_dir), self.recorded)

    # Clients.

    def _new_talk(self, number: int) -> None:
        self.talks.append((self.random.choice(self.agents), f"talk-{self.weather.seed}-{number}"))

    async def _client(self, client: httpx.AsyncClient, dice: random.Random) -> None:
        while time.monotonic() < self.until:
            agent, talk = dice.choice(self.talks)
            doing = dice.choices(
                (self._start, self._race_starts, self._cancel, self._cancel_active, self._clear, self._edit, self._three_at_once),
                (40, 8, 10, 6, 5, 6, 6),
            )[0]  # fmt: skip
            await doing(client, dice, agent, talk)
            await asyncio.sleep(dice.expovariate(4.0))

    async def _start(
        self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str, key: str = ""
    ) -> str | None:
        body: dict[str, Any] = {
            "agent_id": agent,
            "conversation_id": talk,
            "message": _message(dice, talk, key),
            "on_conflict": dice.choice(("reject", "reject", "enqueue", "interrupt")) if not key else "enqueue",
        }
        if key or dice.random() < 0.5:
            body["client_request_id"] = key or f"key-{dice.getrandbits(64):x}"
        times = dice.choice((1, 1, 1, 2, 3)) if "client_request_id" in body else 1
        run_id = None
        for _ in range(times):
            answer = await self._call(client, dice, "POST", "/api/v1/runs", body)
            if answer is None or answer.status_code != 202:
                continue
            run_id = str(answer.json()["data"]["run_id"])
            if "client_request_id" in body:
                self.recorded.run_of((talk, body["client_request_id"]), run_id)
            else:
                self.recorded.run_of((talk, f"no key {run_id}"), run_id)
            self.runs.append(run_id)
            if len(self.watching) < 60:
                self._watch(client, run_id, random.Random(dice.random()))
        return run_id

    async def _race_starts(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        key = f"raced-{dice.getrandbits(64):x}"
        many = dice.choice((4, 8, 50))
        await asyncio.gather(
            *(self._start(client, random.Random(dice.random()), agent, talk, key) for _ in range(many))
        )

    async def _cancel(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        if not self.runs:
            return
        run_id = dice.choice(self.runs[-20:])
        answer = await self._call(client, dice, "DELETE", f"/api/v1/runs/{run_id}", None)
        if answer is not None and answer.status_code == 200:
            # I12: whatever else is going on, the terminal is in the log by now.
            self.recorded.cancelled(run_id, answer.json()["data"], StoredMesh(self.mesh.data_dir))

    async def _cancel_active(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        body = {"agent_id": agent, "conversation_id": talk}
        answer = await self._call(client, dice, "POST", "/api/v1/runs/cancel-active", body)
        if answer is not None and answer.status_code == 200 and answer.json()["data"]["run_id"]:
            run_id = answer.json()["data"]["run_id"]
            self.recorded.cancelled(run_id, None, StoredMesh(self.mesh.data_dir))

    async def _clear(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        body = {"agent_id": agent, "conversation_id": talk}
        answer = await self._call(client, dice, "POST", "/api/v1/sessions/clear", body)
        if answer is not None and answer.status_code == 200:
            self.recorded.cleared(talk, answer.json()["data"])

    async def _edit(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        read = await self._call(client, dice, "GET", f"/api/v1/agents/{agent}", None)
        if read is None or read.status_code != 200:
            return
        data = read.json()["data"]
        blueprint = data["version"]["blueprint"]
        blueprint["prompt"]["system"] = f"Be helpful, in way {dice.getrandbits(32)}."
        body: dict[str, Any] = {"blueprint": blueprint}
        if dice.random() < 0.5:
            body["expected_revision"] = data["record"]["revision"]
        answer = await self._call(client, dice, "PUT", f"/api/v1/agents/{agent}", body)
        if answer is not None and answer.status_code == 200:
            version = answer.json()["data"]["version"]
            self.recorded.saved(agent, int(version["version"]), version["blueprint"]["prompt"]["system"])

    async def _three_at_once(self, client: httpx.AsyncClient, dice: random.Random, agent: str, talk: str) -> None:
        """Clear, start and cancel of one conversation in the same moment."""
        sides = (self._clear, self._start, self._cancel_active, self._start, self._clear)
        await asyncio.gather(*(side(client, random.Random(dice.random()), agent, talk) for side in sides))

    async def _call(
        self, client: httpx.AsyncClient, dice: random.Random, method: str, path: str, body: Any
    ) -> httpx.Response | None:
        """The answer; None when the gateway went away with it. An answer that no client could do anything with is a finding."""
        began = time.monotonic()
        try:
            answer = await client.request(method, dice.choice(self.urls) + path, json=body)
        except httpx.TimeoutException:
            # A stopped gateway answers nobody; one that runs has to answer within its own bounds.
            if time.monotonic() - began > 40 + self.weather.stall:
                self.recorded.wrong.append(f"{method} {path}: no answer for {time.monotonic() - began:.0f} s")
            return None
        except httpx.TransportError:
            return None
        if answer.status_code >= 400 and answer.status_code not in RETRYABLE:
            self.recorded.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:400]}")
        code = "" if answer.status_code < 400 else f" {answer.json().get('code', '')}"
        self.recorded.answers[f"{method} {answer.status_code}{code}"] += 1
        return answer

    # Watchers.

    def _watch(self, client: httpx.AsyncClient, run_id: str, dice: random.Random) -> None:
        task = asyncio.create_task(self._watcher(client, run_id, dice))
        self.watching.add(task)
        task.add_done_callback(self.watching.discard)

    async def _watcher(self, client: httpx.AsyncClient, run_id: str, dice: random.Random) -> None:
        """Reads a run to its end, goes away now and then, and comes back with what it saw last."""
        seen = self.recorded.new_watcher(run_id)
        give_up = self.until + SETTLE_SECONDS
        while not seen.ended and time.monotonic() < give_up:
            headers = {"Last-Event-ID": str(seen.last)} if seen.last else {}
            leave_after = dice.choice((1, 3, 10, 1000, 1000))
            try:
                async with client.stream(
                    "GET", f"{dice.choice(self.urls)}/api/v1/runs/{run_id}/events/stream", headers=headers,
                    timeout=httpx.Timeout(20),
                ) as response:  # fmt: skip
                    if response.status_code == 200:
                        await self._read(response, seen, leave_after)
                    elif response.status_code not in RETRYABLE:
                        seen.wrong.append(f"{response.status_code} {(await response.aread())[:200]!r}")
                        return
            except httpx.TransportError:
                pass  # the gateway died or stands still; the next turn asks again
            await asyncio.sleep(dice.random() * 0.3)

    async def _read(self, response: httpx.Response, seen: Seen, leave_after: int) -> None:
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

    # Faults.

    async def _faults(self, dice: random.Random) -> None:
        pending: set[asyncio.Task[None]] = set()
        while time.monotonic() < self.until:
            await asyncio.sleep(dice.expovariate(1 / self.weather.calm))
            target = dice.choice(self.targets)
            if dice.random() < 0.3:  # more often those that hold the runs
                target = dice.choice([target for target in self.targets if target.name.startswith("runs")])
            pid = target.find()
            if not pid or pid in self.stopped:
                continue
            if dice.random() < 0.5:
                self._signal(target, pid, signal.SIGKILL)
            else:
                seconds = dice.choice((0.2, 1.0, self.weather.stall * 0.85, self.weather.stall))
                pending.add(asyncio.create_task(self._stall(target, pid, seconds)))
        if pending:
            await asyncio.wait(pending)

    async def _stall(self, target: Target, pid: int, seconds: float) -> None:
        self.stopped.add(pid)
        if self._signal(target, pid, signal.SIGSTOP):
            await asyncio.sleep(seconds)
            self._signal(target, pid, signal.SIGCONT)
        self.stopped.discard(pid)

    def _signal(self, target: Target, pid: int, number: signal.Signals) -> bool:
        self.faults.append(f"{time.time():.3f} {number.name} {target.name} {pid}")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    # The calm after it.

    async def _calm_down(self, client: httpx.AsyncClient) -> None:
        """Waits until nothing runs and nobody watches, bounded."""
        self.recorded.settled_in = await self._settled()
        if self.watching:
            _, late = await asyncio.wait(set(self.watching), timeout=40)
            for task in late:
                task.cancel()
            if late:
                self.recorded.wrong.append(f"{len(late)} watchers saw no end of their run")
        await self._replay(client)
        for agent, talk in self.talks:
            await self._goes_on(client, agent, talk)
        await self._settled()

    async def _settled(self) -> float:
        """Returns once nothing runs; how long that took. A terminal is seen before slot and status follow it."""
        stored, began = StoredMesh(self.mesh.data_dir), time.monotonic()
        while left := stored.unsettled():
            if time.monotonic() - began > SETTLE_SECONDS:
                self.recorded.wrong.append(f"I9: not settled {SETTLE_SECONDS:g} s after the storm: {left}")
                break
            await asyncio.sleep(0.25)
        return time.monotonic() - began

    async def _replay(self, client: httpx.AsyncClient) -> None:
        """Every run that somebody watched, once more from its beginning through every gateway, to be compared with what they saw."""
        for run_id in sorted({seen.run_id for seen in self.recorded.watchers}):
            for url in self.urls:
                seen = self.recorded.new_watcher(run_id)
                try:
                    async with client.stream("GET", f"{url}/api/v1/runs/{run_id}/events/stream") as response:
                        await self._read(response, seen, sys.maxsize)
                except httpx.TransportError as error:
                    seen.wrong.append(f"replay after the storm: {error!r}")

    async def _goes_on(self, client: httpx.AsyncClient, agent: str, talk: str) -> None:
        """Every conversation takes another turn and completes it."""
        body = {"agent_id": agent, "conversation_id": talk, "message": '{"n": 2}'}
        bound = time.monotonic() + 30
        said = "nothing"
        while time.monotonic() < bound:
            try:
                answer = await client.post(f"{self.urls[0]}/api/v1/runs", json=body)
                said = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code == 202:
                    run_id = answer.json()["data"]["run_id"]
                    seen = self.recorded.new_watcher(run_id)
                    async with client.stream("GET", f"{self.urls[0]}/api/v1/runs/{run_id}/events/stream") as response:
                        await self._read(response, seen, 1000)
                    if seen.last_type == "run.completed":
                        return
                    said = f"{run_id} ended as {seen.last_type}"
            except httpx.TransportError as error:
                said = repr(error)
            await asyncio.sleep(0.3)
        self.recorded.wrong.append(f"{talk} does not go on: {said}")


def _message(dice: random.Random, talk: str, key: str) -> str:
    if key:  # the same request has the same body
        return json.dumps({"n": 8, "rate": 40})
    return json.dumps(
        dice.choice(
            (
                {"n": 3},
                {"n": 10, "rate": 20},
                {"n": 60, "rate": 0},
                {"n": 30, "rate": 10},
                {"n": 5, "delay": 0.5},
                {"script": [{"text": "one two three"}, {"sleep": 0.3}, {"text": "four"}]},
                {"script": [{"fail": {"category": "rate_limit", "message": "busy", "retryable": True}}]},
            )
        )
    )


@asynccontextmanager
async def second_replica(mesh: RunningMesh) -> AsyncGenerator[tuple[str, list[Target]]]:
    """Another process each of sessions, runs and gateway on the stores of the mesh; restarted when it ends. Yields the gateway's URL."""
    async with AsyncExitStack() as stack:
        sockets = mesh.data_dir / "run"
        sessions, runs = f"unix:{sockets / 'sessions-b.sock'}", f"unix:{sockets / 'runs-b.sock'}"
        facade = f"unix:{sockets / 'facade' / 'state-b.sock'}"
        plans: list[tuple[str, dict[str, str]]] = [
            ("sessions", {"HARNESS_LISTEN": sessions, "HARNESS_FACADE_LISTEN": facade}),
            (
                "runs",
                {
                    "HARNESS_LISTEN": runs,
                    "HARNESS_SESSIONS_ADDRESS": sessions,
                    "HARNESS_STATE_FACADE_ADDRESS": facade,
                },
            ),
            ("gateway", {"HARNESS_LISTEN": "127.0.0.1:0", "HARNESS_RUNS_ADDRESS": runs}),
        ]
        replicas: list[_Replica] = []
        for service, changed in plans:
            replica = _Replica(mesh, service, changed)
            await replica.start()
            keeping = asyncio.create_task(replica.keep())
            stack.push_async_callback(replica.stop, keeping)
            replicas.append(replica)
        targets = [Target(f"{replica.service}-b", replica.pid) for replica in replicas]
        yield f"http://{replicas[-1].address}", targets


class _Replica:
    """A second process of a service, with the environment of the first."""

    def __init__(self, mesh: RunningMesh, service: str, changed: dict[str, str]) -> None:
        self.service = service
        self.address = ""
        raw = Path(f"/proc/{mesh.pid(service)}/environ").read_bytes().split(b"\0")
        environment = dict(entry.decode().split("=", 1) for entry in raw if b"=" in entry)
        for name in ("HARNESS_READY_FD", "HARNESS_LIFELINE_FD"):
            environment.pop(name, None)
        self._environment = {**environment, **changed, "HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        self._log = mesh.data_dir / "logs" / f"{service}-b.log"
        self._process: asyncio.subprocess.Process | None = None

    def pid(self) -> int:
        """Its pid, 0 while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    async def start(self) -> None:
        """Returns once it serves."""
        reader, writer = os.pipe()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"services.{self.service}",
                env={**self._environment, "HARNESS_READY_FD": str(writer)},
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[writer],
            )
        os.close(writer)
        with os.fdopen(reader, "rb") as announced:
            line = await asyncio.to_thread(announced.readline)
        if line:
            self.address = json.loads(line).get("address", "")
            if self.service == "gateway":  # a free port is kept over a restart
                self._environment["HARNESS_LISTEN"] = self.address

    async def keep(self) -> None:
        """Starts it again whenever it ends."""
        while self._process is not None:
            await self._process.wait()
            await asyncio.sleep(0.2)
            await self.start()

    async def stop(self, keeping: asyncio.Task[None]) -> None:
        """Ends it for good."""
        keeping.cancel()
        await asyncio.wait({keeping})
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            await process.wait()


async def storm(mesh: RunningMesh, weather: Weather) -> Storm:
    """A storm over a mesh that is ready; its `recorded.wrong` is empty when every invariant held."""
    dice = random.Random(weather.seed)
    blowing = Storm(weather, mesh, dice)
    blowing.urls.append(mesh.url)
    blowing.targets += [Target(name, lambda name=name: mesh.pid(name)) for name in FAULTY]
    with mesh.client(SUBJECT) as client:
        sandboxed = round(weather.sandboxed * weather.conversations)
        blowing.agents += [save_agent(client) for _ in range(max(1, weather.conversations // 2 - sandboxed))]
        blowing.agents += [save_agent(client, profile="sandboxed") for _ in range(sandboxed)]
    async with AsyncExitStack() as stack:
        if weather.second_replica:
            url, targets = await stack.enter_async_context(second_replica(mesh))
            blowing.urls.append(url)
            blowing.targets += targets
        blowing.recorded.wrong += await blowing.blow()
    return blowing


def run_storm(mesh: RunningMesh, weather: Weather) -> Storm:
    """`storm`, for callers without a loop."""
    return asyncio.run(storm(mesh, weather))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--sandboxed", type=float, default=0.0)
    parser.add_argument("--calm", type=float, default=1.2)
    parser.add_argument("--replicas", type=int, choices=(1, 2), default=1)
    parser.add_argument("--data-dir", type=Path, default=None, help="kept; a temporary folder without it")
    given = parser.parse_args()
    weather = Weather(
        given.seed, given.seconds, given.clients, given.conversations, given.sandboxed, given.calm,
        second_replica=given.replicas == 2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        data_dir = given.data_dir or Path(folder) / "mesh"
        with running_mesh(data_dir) as mesh:
            blown = run_storm(mesh, weather)
    story = [f"seed {weather.seed}: {blown.recorded.summary()}; faults {len(blown.faults)}"]
    if blown.recorded.wrong:
        story += [
            *(f"  fault {fault}" for fault in blown.faults),
            *(f"VIOLATION {what}" for what in blown.recorded.wrong),
        ]
    sys.stdout.write("\n".join(story) + "\n")
    return 1 if blown.recorded.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
