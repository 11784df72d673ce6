"""Who may take a run, and what the run is then (run protocol, Take 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from services.runs.intent import Intent
from services.runs.run import Run, Status


class Why(Enum):
    """On what grounds a run is taken."""

    FIRST = "first"
    """It is queued and its slot is its own."""
    DEAD = "dead"
    """Its lease expired or its holder handed it over."""
    FORCE = "force"
    """It must end now, whoever holds it."""


class Refused(Enum):
    """Why a run cannot be taken."""

    ENDED = "ended"
    """Its status says that it ended, or it never was a run."""
    HELD = "held"
    """Somebody holds it, or has taken it since it was read."""


@dataclass(frozen=True, slots=True)
class Taker:
    """Who takes, and when (Unix milliseconds)."""

    holder: str
    now: int


def claim(
    run: Run, why: Why, taker: Taker, *, seen: tuple[int, int] | None = None, intent: Intent | None = None
) -> Run | Refused:
    """The run as the taker writes it, by compare-and-set on what was read.

    `seen` is the (generation, renewals) on which an observer's judgement rests: if they moved, the judgement is void. `intent` is written
    with a forced claim, unless there is one already: the first decision stands (I12).
    """
    if not run.is_open:
        return Refused.ENDED
    if seen is not None and seen != (run.run_generation, run.renewals):
        return Refused.HELD
    if why is Why.FIRST and run.status is not Status.QUEUED:
        return Refused.HELD
    if why is Why.DEAD and run.status is not Status.RUNNING:
        return Refused.HELD
    # Two helpers must not outbid each other for ever: who is ending a run is left alone until its lease is dead.
    if why is Why.FORCE and run.ending and run.holder:
        return Refused.HELD
    return replace(
        run,
        status=Status.RUNNING,
        run_generation=run.run_generation + 1,  # I10: everything of the old holder is now stale
        holder=taker.holder,
        renewals=0,
        ending=run.ending or why is Why.FORCE,
        intent=run.intent or intent,
        updated_at=taker.now,
    )
