"""Rules of the sections "Sweep" and "Read"."""

from __future__ import annotations

from tests.simulation.faults import Edit, Fault

FAULTS = (
    Fault(
        id="sweep-queued",
        rule="Sweep: queued without a taker.",
        edits=(Edit("services.runs.sweep", "        await self._pick_up()\n", ""),),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 2.0, "max_active": 1, "weights": {"start_enqueue": 10.0}},
        seed=17,
    ),
    Fault(
        id="sweep-dead-lease",
        rule="Sweep: running with a dead lease.",
        edits=(Edit("services.runs.sweep", "        await self._take_over()\n", ""),),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 1.5},
        seed=19,
    ),
    Fault(
        id="sweep-behind-ended",
        rule="Sweep: waiting behind an occupant that ended. (Whoever takes such a run releases its slot, too: that is left out as well.)",
        edits=(
            Edit(
                "services.runs.sweep",
                "        states[binding.active.run_id] = await self._starter.help_out(binding, binding.active.run_id)\n",
                "        occupant = await self._engine.store.get(binding.active.run_id)\n"
                "        if occupant is not None:\n"
                "            return\n"
                "        states[binding.active.run_id] = await self._starter.help_out(binding, binding.active.run_id)\n",
            ),
            Edit(
                "services.runs.executor",
                "                await self._settle(Status(found.terminal_status), found.error_code)\n",
                "                as_found = ended(self._held.run, Status(found.terminal_status), last_sequence=found.last_sequence,"
                " error_code=found.error_code, now=self._engine.now(), retention_ms=3_600_000)\n"
                "                await self._engine.store.put(self._held.run, as_found)\n",
            ),
        ),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 3.0, "scripts": {"quick": 30.0}},
        seed=9,
    ),
    Fault(
        id="sweep-never-stored",
        rule="Sweep: reservations never stored.",
        edits=(
            Edit(
                "services.runs.sweep",
                "        states[binding.active.run_id] = await self._starter.help_out(binding, binding.active.run_id)\n",
                "        if await self._engine.store.get(binding.active.run_id) is None:\n"
                "            return\n"
                "        states[binding.active.run_id] = await self._starter.help_out(binding, binding.active.run_id)\n",
            ),
        ),
        breaks=("I9",),
        level="crash",
        settings={".crashes": 3.0, ".slow": 0.2},
        seed=11,
    ),
    Fault(
        id="sweep-closing",
        rule="Sweep: closing.",
        edits=(
            Edit(
                "services.runs.sweep",
                "            await self._clearer.help(binding)\n            return\n",
                "            return\n",
            ),
        ),
        breaks=("I5", "I9"),
        level="crash",
        settings={".crashes": 2.0, "weights": {"clear": 20.0}, "scripts": {"slow": 10.0, "hang": 10.0}},
        seed=3,
    ),
    Fault(
        id="sweep-supersedes",
        rule="Sweep: supersedes not carried out.",
        edits=(
            Edit(
                "services.runs.sweep",
                "            await self._starter.supersede(binding, newest.run_id)\n",
                "            return\n",
            ),
        ),
        breaks=("queue",),
        level="crash",
        settings={
            ".crashes": 3.0,
            ".slow": 0.3,
            "seconds": 3.0,
            "conversations": 3,
            "clients": 3,
            "weights": {"start_interrupt": 30.0},
            "scripts": {"hang": 40.0},
        },
        seed=47,
    ),
    Fault(
        id="read-only-cursor-plus-one",
        rule="Read: forward only cursor + 1; a notice that skips ahead means read the log.",
        edits=(
            Edit(
                "services.runs.live.follower",
                "        if segment.first_sequence != self.known + 1:\n            return\n",
                "",
            ),
        ),
        breaks=("I7", "I8"),
        level="rain",
        settings={".notice_lost": 0.4, "scripts": {"slow": 30.0}},
        seed=6,
    ),
    Fault(
        id="read-skip-means-read",
        rule="Read: a notice that skips ahead means read the log. (One place reads for notices and for the slow poll.)",
        edits=(
            Edit(
                "services.runs.live.hub",
                "        if follower.is_behind and follower.opened and not follower.catching_up and not self._stopping:\n",
                "        if False:\n",
            ),
        ),
        breaks=("I9",),
        level="rain",
        settings={".notice_lost": 0.4, "scripts": {"slow": 30.0}},
        seed=3,
    ),
    Fault(
        id="read-subscribe-then-read",
        rule="Read: subscribe, then read by index. (The slow poll is the second line of defence: both are left out.)",
        edits=(
            Edit(
                "services.runs.live.hub",
                "            follower.open(await _from_store(self._tail(follower.run_id)))\n",
                "            follower.open(None)\n",
            ),
            Edit(
                "services.runs.live.hub",
                '        self._tasks.every("live_poll", self._poll_seconds, self.poll_once)\n',
                "        return\n",
            ),
        ),
        breaks=("I9",),
        level="rain",
        settings={"conversations": 2, "clients": 3, "operations": 6, "weights": {"repeat": 20.0}},
    ),
    Fault(
        id="read-idle-watchers-poll",
        rule="Read: idle watchers poll the log slowly (the last notice may be lost).",
        edits=(
            Edit(
                "services.runs.live.hub",
                '        self._tasks.every("live_poll", self._poll_seconds, self.poll_once)\n',
                "        return\n",
            ),
        ),
        breaks=("I9",),
        level="rain",
        settings={".notice_lost": 0.6},
    ),
)
