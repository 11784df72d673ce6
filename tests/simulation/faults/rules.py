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
}
"""Section → rule → ids of its faults."""
