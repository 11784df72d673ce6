"""What is done to the mesh: each fault by real means, bounded in time, and undone by itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import redis.asyncio

from tests.chaos.disk import SmallDisk
from tests.chaos.mesh import ChaosMesh, Member
from tests.chaos.plan import Fault, Kind
from tests.chaos.sockets import cut_connections

LONGEST_STOP: Final = 1.7
"""Of the lease: a stopped process stays so for 1.1 to this many leases."""
LONGEST_LOCK_SECONDS: Final = 4.0
LONGEST_PAUSE_SECONDS: Final = 3.0
LONGEST_FULL_SECONDS: Final = 3.0
SHORTEST_SECONDS: Final = 0.3
BACK_SECONDS: Final = 60.0


@dataclass(slots=True)
class Injection:
    """A fault that was injected."""

    what: str
    victim: str
    """The life of the runs process it met, as runs name their holder; empty: it met something else."""
    everything: bool
    """Whether it met something that every run goes through."""
    over: Awaitable[None] | None = None
    """Returns once it is undone, or its victim is back."""


@dataclass(slots=True)
class Faults:
    """Injects faults into one mesh."""

    mesh: ChaosMesh
    ttl: float
    disk: SmallDisk | None
    stopped: set[int] = field(default_factory=set[int])
    pending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def inject(self, fault: Fault, holder: str) -> Injection | None:
        """Does it, at once. `holder` holds the run that the point is about. None: its victim is down already, or stopped."""
        match fault.kind:
            case Kind.KILL | Kind.STOP | Kind.TERM | Kind.CUT:
                member = self._victim(fault, holder)
                return None if member is None else self._at_member(fault, member)
            case Kind.FLUSH:
                return self._in_background("FLUSHALL", self._flush())
            case Kind.PAUSE:
                return self._in_background("CLIENT PAUSE", self._pause(_between(fault, LONGEST_PAUSE_SECONDS)))
            case Kind.LOCK:
                seconds = _between(fault, LONGEST_LOCK_SECONDS)
                return self._in_background(f"lock {fault.target} {seconds:.1f} s", self._lock(fault.target, seconds))
            case Kind.FULL:
                seconds = _between(fault, LONGEST_FULL_SECONDS)
                return self._in_background(f"full disk {seconds:.1f} s", self._fill(seconds))

    def freeze(self, member: Member) -> tuple[int, ...]:
        """Stops a process for a moment, so that what is read of the stores stays true; see `thaw`. May be called by another thread."""
        if not member.pid or member.pid in self.stopped:
            return ()
        _signal(member.pid, signal.SIGSTOP)
        return (member.pid,)

    def thaw(self, frozen: tuple[int, ...]) -> None:
        """Lets go what `freeze` stopped, but for what a fault keeps stopped."""
        for pid in frozen:
            if pid not in self.stopped:
                _signal(pid, signal.SIGCONT)

    async def settle(self) -> None:
        """Returns once nothing is stopped, locked, paused or full any more."""
        while self.pending:
            await asyncio.wait(set(self.pending))

    def _victim(self, fault: Fault, holder: str) -> Member | None:
        members = [
            member for member in self.mesh.members(fault.target) if member.pid and member.pid not in self.stopped
        ]
        if not members:
            return None
        held_by = self.mesh.member_of(holder)
        if fault.target == "runs" and held_by is not None and held_by in members:
            return held_by
        return random.Random(fault.dice).choice(members)

    def _at_member(self, fault: Fault, member: Member) -> Injection:
        victim, everything = self.mesh.life_of(member), member.service in ("sessions", "bus", "store", "adapter")
        what = f"{fault.kind.value} {member.name} {member.pid}"
        match fault.kind:
            case Kind.KILL:
                _signal(member.pid, signal.SIGKILL)
                return Injection(what, victim, everything, self._keep(self.mesh.back(member, BACK_SECONDS)))
            case Kind.TERM:
                _signal(member.pid, signal.SIGTERM)
                return Injection(what, victim, everything, self._keep(self.mesh.back(member, BACK_SECONDS)))
            case Kind.CUT:
                dice = random.Random(fault.dice)
                try:
                    count = cut_connections(member.pid, fault.length, dice)
                except OSError as error:  # it ended just now
                    return Injection(f"{what}: {error}", victim, everything)
                return Injection(f"{what}: {count} connections", victim, everything)
            case _:
                seconds = self.ttl * (1.1 + (LONGEST_STOP - 1.1) * fault.length)
                self.stopped.add(member.pid)
                _signal(member.pid, signal.SIGSTOP)
                return Injection(
                    f"{what} {seconds:.1f} s", victim, everything, self._keep(self._go_on(member, seconds))
                )

    async def _go_on(self, member: Member, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            _signal(member.pid, signal.SIGCONT)
            self.stopped.discard(member.pid)

    def _in_background(self, what: str, work: Awaitable[None]) -> Injection:
        return Injection(what, "", everything=True, over=self._keep(work))

    def _keep(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def done() -> None:
            await work

        task = asyncio.create_task(done())
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        return task

    async def _flush(self) -> None:
        await self._at_bus(lambda bus: bus.flushall())

    async def _pause(self, seconds: float) -> None:
        await self._at_bus(lambda bus: bus.execute_command("CLIENT", "PAUSE", round(seconds * 1000), "ALL"))
        await asyncio.sleep(seconds)

    async def _at_bus(self, do: Callable[[redis.asyncio.Redis], Awaitable[object]]) -> None:
        client = redis.asyncio.Redis(unix_socket_path=self.mesh.bus_path, socket_timeout=5)
        try:
            await do(client)
        except redis.RedisError:  # it is down, or paused: another fault was faster
            return
        finally:
            await client.aclose()

    async def _lock(self, service: str, seconds: float) -> None:
        with closing(sqlite3.connect(self.mesh.store_file(service), timeout=0, isolation_level=None)) as connection:
            for _ in range(400):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError:  # a group is being written
                    await asyncio.sleep(0.005)
            else:
                return
            await asyncio.sleep(seconds)
            connection.execute("ROLLBACK")

    async def _fill(self, seconds: float) -> None:
        if self.disk is None:
            return
        # The log of what is written is made small first: what it has would take more writes before any needs room.
        for file in [each for each in self.disk.folder.glob("*.sqlite*") if each.suffix in (".sqlite", ".sqlite3")]:
            with closing(sqlite3.connect(file, timeout=0)) as connection:
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                except sqlite3.OperationalError:  # a group is being written; then it takes a little longer
                    continue
        async with self.disk.full():
            await asyncio.sleep(seconds)


def _between(fault: Fault, longest: float) -> float:
    return SHORTEST_SECONDS + (longest - SHORTEST_SECONDS) * fault.length


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it ended by itself, or by another fault
        return
