"""Which rules of the run protocol were shown to be needed, in short, and the faults that leave each of them out.

A rule may have several faults: one for each half of it, or one for each place at which it is said. A fault that needs two edits names in its own
`rule` what else would have held.
"""

from __future__ import annotations

from typing import Final

RULES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Three documents": {
        "turn orders the runs of a binding: a runtime refuses a lower one": ("turn-lower-refused",),
        "a higher turn ends whatever an older one still does in the runtime": ("turn-higher-ends-older",),
    },
    "Start": {
        "1: reserve first, by one compare-and-set on the binding as it was read": (
            "start-1-one-cas",
            "start-1-reserve-before-storing",
        ),
        "1: look the request key up after the binding was read, before any conflict is answered": (
            "start-1-conflict-looks-up",
        ),
        "1: the same before the compare-and-set of policy interrupt": ("start-1-interrupt-looks-up",),
        "1: the same before the compare-and-set of a resume": ("start-1-resume-looks-up",),
        "1: policy interrupt dismisses an interrupt only in the compare-and-set that gives it the slot": (
            "start-1-dismissed-with-the-slot",
        ),
        "1: superseded are the occupant that this compare-and-set saw and waiting runs of the same policy": (
            "start-1-supersedes-what-it-saw",
        ),
        "1: enqueue appends to the line, interrupt goes before all others": (
            "queue-first-come-first",
            "queue-interrupt-first",
        ),
        "1: an occupant that ended, or was never stored, is helped out and no reason for a conflict": (
            "start-1-ended-occupant-helped-out",
            "start-1-unstored-occupant-helped-out",
        ),
        "2: a duplicate request key releases the reservation and is answered with the older run": (
            "start-2-duplicate-answers-older",
            "start-2-duplicate-releases",
        ),
        "2: nobody is answered with a run that is not stored": ("start-2-answered-unstored",),
        "died after 1: after a grace a tombstone under the reserved id, then the release": ("start-died-no-tombstone",),
    },
    "Take": {
        "1: compare-and-set on the run, same generation, status and renewals; free and in the slot, expired or forced; generation + 1": (
            "take-1-cas",
            "take-1-generation",
            "take-1-slot",
            "take-1-lease",
        ),
        "1: a forced take sets ending, and an ending run is taken again only when its lease has expired": (
            "take-1-forced-sets-ending",
            "take-1-ending-left-alone",
        ),
        "2: a later generation claims the slot; from there the older one commits nothing": (
            "take-2-slot-claimed",
            "take-2-old-generation-commits",
        ),
        "3: a later generation seals the log": ("take-3-seal",),
        "3: a terminal that is met concludes the run": ("take-3-terminal-met",),
        "3: a younger generation that is met stops the taker": ("take-3-younger-met",),
        "4: a terminal in the log concludes the run": ("take-4-terminal-in-log",),
        "4: an intent on the record is carried out and nothing is issued": ("take-4-intent",),
        "4: a head that names the run concludes it with the stored outcome": ("take-4-head-names-run",),
    },
    "Issue and follow": {
        "1: the runtime is resolved and recorded before the first StartRun, which goes to that incarnation only": (
            "issue-1-recorded-first",
            "issue-1-that-incarnation-only",
        ),
        "1: issued to a runtime that is gone it is never started again, and ends truthfully": (
            "issue-1-never-started-again",
            "issue-1-side-effects-possible",
        ),
        "2: one append in flight; through_offset in the segment; an offset in one segment; attach from the last durable one": (
            "issue-2-one-append-in-flight",
            "issue-2-through-offset",
            "issue-2-offset-in-one-segment",
            "issue-2-attach-from-durable",
        ),
        "3: a duplicate index with another's nonce stops the writer at once": ("issue-3-duplicate-stops",),
        "4: publish after the append": ("issue-4-publish-after-append",),
        "4: acknowledge after the append": ("issue-4-acknowledge-after-append",),
        "5: renew by compare-and-set on generation and running; failing means stop": (
            "issue-5-renew-by-cas",
            "issue-5-failing-means-stop",
        ),
    },
    "States": {
        "a deadline ends a run as cancelled, reason deadline": ("deadline-ends-the-run",),
        "deadline_at is set once, at the first issue, and survives takeovers": (
            "deadline-set-once",
            "deadline-survives-takeover",
            "deadline-watched-after-takeover",
        ),
    },
    "End": {
        "the provider finished: closed by compare-and-set on the run, if the agent has tools": (
            "end-closed-before-head",
        ),
        "the provider finished: then head with its outcome, and the interrupt in the same compare-and-set, under epoch, active run and "
        "generation": (
            "end-head-keeps-outcome",
            "end-head-and-interrupt-in-one-write",
            "end-head-under-active-run",
        ),
        "the provider finished: then the terminal segment, before slot and status": (
            "end-head-before-terminal",
            "end-terminal-before-release",
        ),
        "the engine decides: intent by compare-and-set first": ("end-engine-intent-first", "end-cancel-intent-first"),
        "the engine decides: CancelRun to the incarnation it was issued to, bounded in time": (
            "end-runtime-told-to-stop",
            "end-cancel-bounded-in-time",
        ),
        "the runtime remembers a cancel, also of a run it does not know": ("end-runtime-remembers-cancel",),
        "the terminal segment alone ends a run; what follows it may be repeated by anyone": (
            "end-terminal-alone-ends",
        ),
    },
    "Release": {
        "only if the slot is still mine": ("end-release-only-mine",),
        "the next of those who wait moves up in the same compare-and-set, in order, turn + 1": (
            "end-next-moves-up",
            "end-next-moves-up-in-order",
            "end-turn-rises",
        ),
        "nobody moves up while an interrupt is pending": ("end-nobody-moves-up-while-pending",),
        "one of policy interrupt dismisses it there": ("end-interrupt-policy-dismisses-there",),
    },
    "Cancel": {
        "answered only when a terminal is in the log": ("cancel-answer-needs-terminal",),
        "not within the grace, or queued, or unowned: by force": ("cancel-takes-by-force",),
        "the first reason stands": ("cancel-reasons-differ",),
    },
    "Clear": {
        "closing first; it refuses reservations, heads and facade writes": (
            "clear-closing-first",
            "clear-closing-refuses-reservations",
            "clear-closing-nobody-moves-up",
            "clear-closing-refuses-heads",
            "clear-closing-refuses-facade-writes",
        ),
        "the active and every waiting run: a tombstone if never stored, else intent and forced end": (
            "clear-ends-every-waiting-run",
            "clear-waits-for-the-line",
            "clear-tombstones-the-unstored",
            "clear-ends-stored-runs",
        ),
        "one compare-and-set: archive, epoch + 1, nothing carried over": (
            "clear-archives",
            "clear-carries-nothing-over",
        ),
        "whoever meets closing helps": ("clear-whoever-meets-closing-helps",),
    },
    "Resume": {
        "the reservation consumes the interrupt and takes the slot": ("resume-consumes-in-the-reservation",),
        "the same decision again is that run, another a conflict": ("resume-same-decision-same-run",),
        "one that ended without having been issued gives the interrupt back in its release, revision + 1; no other does": (
            "resume-unissued-gives-back",
            "resume-given-back-revision",
            "resume-issued-keeps",
        ),
        "shown only once its run's terminal is in the log": ("resume-shown-after-terminal",),
    },
    "Tools": {
        "accepted by a compare-and-set on the run: no intent, not closed, generation current": (
            "tools-accepted-before-the-end",
            "tools-accepted-under-its-generation",
        ),
        "then a unique insert with the argument digest, both before invoking": (
            "tools-accepted-before-recorded",
            "tools-recorded-before-invoked",
            "tools-unique-insert",
            "tools-other-digest",
        ),
        "still started and its broker gone: lost by compare-and-set, then an error, unless the tool is idempotent": (
            "tools-gone-is-lost",
            "tools-lost-by-cas",
        ),
        "an outcome once told never changes": ("tools-outcome-never-changes",),
        "a refused call whose id is already accepted is answered possible, not refused": ("tools-refused-is-possible",),
        "a stale generation is retryable while the runtime is being re-attached": ("tools-stale-is-retryable",),
        "approvals live on the tool's record and are consumed by the resumed run": (
            "tools-approval-asked-for",
            "tools-rejected-is-not-run",
            "tools-edit-is-run",
        ),
    },
    "Sweep": {
        "queued without a taker": ("sweep-queued",),
        "running with a dead lease": ("sweep-dead-lease",),
        "waiting behind an occupant that ended": ("sweep-behind-ended",),
        "reservations never stored": ("sweep-never-stored",),
        "closing": ("sweep-closing",),
        "supersedes not carried out": ("sweep-supersedes",),
    },
    "Read": {
        "subscribe, then read by index": ("read-subscribe-then-read",),
        "forward only cursor + 1; a notice that skips ahead means read the log": (
            "read-only-cursor-plus-one",
            "read-skip-means-read",
        ),
        "idle watchers poll the log slowly": ("read-idle-watchers-poll",),
    },
}
"""Section → rule → ids of its faults."""
