"""A cancel ends the turn within half a second, wherever it is, and its program with it."""

import asyncio
import time

from conformance.plane.broker import SUM, Stall
from conformance.plane.run import kinds, text_of
from tests.adapters.claude.model import HANGS, portable, text, waits
from tests.adapters.claude.rig import Rig, until

BOUND_SECONDS = 0.5


async def test_i12_a_cancel_ends_a_turn_at_once_in_every_state(rig: Rig):
    conversation = rig.conversation()
    conversation.tools.answers[SUM] = Stall()
    await conversation.create()
    took: dict[str, float] = {}

    async def cancelled(where: str, ready) -> None:
        run = conversation.run("hi")
        stream = run.start()
        await ready(stream)
        begun = time.perf_counter()
        await run.cancel()
        took[where] = time.perf_counter() - begun
        await run.follow(stream)
        assert kinds(run.drafts)[-1] == "run_cancelled"

    async def started(_) -> None:
        # The program is on its way up: its folder is there, and it has said nothing.
        await rig.reached(lambda: list((rig.folder / "first").glob("*/turn-*")))

    async def asked(_) -> None:
        await rig.model.came.wait()

    await cancelled("starting", started)
    rig.model.script(HANGS)
    await cancelled("before an answer", asked)
    rig.model.script([text("half"), waits(asyncio.Event())])
    await cancelled("within an answer", lambda stream: until(stream, "content_delta"))
    rig.model.script([portable("kit_sum", "call_a", numbers=[1])])
    await cancelled("in a tool", lambda stream: until(stream, "tool_started"))
    # I12: the bound is what is promised on a machine that has time; what is tested is that none waits for the program's own five seconds.
    assert max(took.values()) < 10 * BOUND_SECONDS, took

    rig.model.script([text("fine")])
    assert text_of(await conversation.say("hi")) == "fine"
    # I20: what a turn had to itself goes with the turn.
    await rig.reached(lambda: not list((rig.folder / "first").glob("*/turn-*")))
    await conversation.cleanup()
    await conversation.cleanup()
    assert rig.left_behind() == []
