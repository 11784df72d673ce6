"""Turns with cancels, failures and killed programs at one adapter host, and what is left of the host afterwards (I20)."""

import asyncio
import gc
import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.plane.run import Run, kind
from tests.adapters.rig import Conversation
from tests.standins.messages import MessagesServer, marked
from tests.standins.messages.script import Answer

BOUND_SECONDS = 90.0
HANGING: list[Answer] = [[{"text": ["begun"]}, {"hang": True}]]
FAILURES: Sequence[Answer] = (
    {"status": 400},
    {"status": 401},
    {"status": 529},
    {"cut": True},
    [{"text": ["begun"]}, {"cut": True}],
    [{"text": ["begun"]}, {"half": True}],
    [{"text": ["begun"]}, {"error": {"type": "overloaded_error", "message": "x"}}],
)


@dataclass(frozen=True, slots=True)
class Held:
    """What a host holds: its children, descriptors, threads, the files of its runtimes, its memory in MiB, and, if it was asked, its objects."""

    children: int
    descriptors: int
    threads: int
    files: int
    memory_mib: float
    objects: int = 0


def children_of(pid: int) -> list[int]:
    """All that descend from a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(child) for child in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile
        for child in direct:
            found += [child, *children_of(child)]
    return found


def held(pid: int, folder: Path) -> Held:
    """What the process holds now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Held(
        len(children_of(pid)),
        len(os.listdir(f"/proc/{pid}/fd")),
        int(status["Threads"]),
        sum(1 for _ in folder.rglob("*")),
        round(int(status["VmRSS"].split()[0]) / 1024, 1),
    )


async def reached(condition: Callable[[], bool], what: str) -> None:
    """Waits for what nothing signals."""
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            while not condition():  # noqa: ASYNC110 - a look at processes, which signal nothing
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} within {BOUND_SECONDS:.0f} seconds") from None


async def completes(conversation: Conversation, dice: random.Random) -> str:
    """A turn that ends well."""
    return _end(await _played(conversation.run(marked([{"text": ["ok"] * dice.randint(1, 20)}]))))


async def fails(conversation: Conversation, dice: random.Random) -> str:
    """A turn whose provider fails."""
    return _end(await _played(conversation.run(marked(dice.choice(FAILURES)))))


async def cancelled(conversation: Conversation, dice: random.Random, pids: Callable[[], list[int]]) -> str:
    """A turn that is cancelled, while its program starts or once it said something."""
    # Of the turn before a program may still be on its way out.
    before = set(pids())
    run = conversation.run(marked(*HANGING))
    stream = run.start()
    if dice.random() < 0.6:
        await stream.read_until(1)
        await run.cancel()
        await run.follow(stream, commit=False)
        return _end(run)
    following = asyncio.ensure_future(run.follow(stream, commit=False))
    await reached(lambda: bool(set(pids()) - before), "a program")
    await run.cancel()
    await following
    return _end(run)


async def killed(conversation: Conversation, _: random.Random, pids: Callable[[], list[int]]) -> str:
    """A turn whose program is killed."""
    run = conversation.run(marked(*HANGING))
    stream = run.start()
    await stream.read_until(1)
    for pid in pids():
        # It may have ended with its parent.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await run.follow(stream, commit=False)
    return _end(run)


async def play(
    conversations: Callable[[], Conversation], model: MessagesServer, host: int, *, turns: int, seed: int
) -> dict[str, int]:
    """So many turns, one after the other, each kind as the seed has it; how they ended, by kind and end."""
    dice, ends = random.Random(seed), dict[str, int]()
    conversation = conversations()
    await conversation.create()
    for number in range(turns):
        if number and dice.random() < 0.1:
            # Now and then a binding ends and another begins.
            await conversation.cleanup()
            conversation = conversations()
            await conversation.create()
        name = dice.choice(("completes", "fails", "cancelled", "killed"))
        if name in ("killed", "cancelled"):
            disturbed = killed if name == "killed" else cancelled
            end = await disturbed(conversation, dice, lambda: children_of(host))
        else:
            end = await (completes if name == "completes" else fails)(conversation, dice)
        ends[f"{name}: {end}"] = ends.get(f"{name}: {end}", 0) + 1
    await conversation.cleanup()
    return ends


async def _played(run: Run) -> Run:
    await run.play()
    return run


def _end(run: Run) -> str:
    return kind(run.drafts[-1])
