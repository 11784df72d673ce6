"""Renewing what is held here, each lease by itself, so that one that is slow to renew holds up no other (run protocol, Take 1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.common.clock import Clock
from services.common.logs import get_logger
from services.common.store import StoreError
from services.common.tasks import BackgroundTasks
from services.runs.lease import HeldLease

_log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class Renewal:
    """One lease that is held here. `lose` ends what rests on it; it may be called again."""

    run_id: str
    lease: HeldLease
    renew: Callable[[], Awaitable[None]]
    lose: Callable[[], None]
    under_way: bool = False
    again: bool = False
    """Somebody asked for one while one was under way: it may have read the record before what they want it to see."""


class Renewals:
    """All leases that are held here, from the claim to the end: set-up included."""

    def __init__(self, clock: Clock, tasks: BackgroundTasks) -> None:
        self._clock = clock
        self._tasks = tasks
        self._held: dict[Renewal, None] = {}
        self._of_run: dict[str, Renewal] = {}

    def hold(
        self, run_id: str, lease: HeldLease, renew: Callable[[], Awaitable[None]], lose: Callable[[], None]
    ) -> Renewal:
        """Renew this lease from now on; pair with `let_go`."""
        renewal = Renewal(run_id, lease, renew, lose)
        self._held[renewal] = None
        self._of_run[run_id] = renewal
        return renewal

    def let_go(self, renewal: Renewal) -> None:
        """Renew it no more."""
        del self._held[renewal]
        if self._of_run.get(renewal.run_id) is renewal:
            del self._of_run[renewal.run_id]

    def turn(self) -> None:
        """Begin to renew what is due; give up what could not be renewed in time. Call it a few times in each TTL."""
        now = self._clock.monotonic()
        for renewal in list(self._held):
            if renewal.under_way:
                self._stop_if_late(renewal)
            elif renewal.lease.is_due(now):
                self._begin(renewal)

    def renew_now(self, run_id: str) -> None:
        """Renew the run's lease whether it is due or not, and so read what others wrote on the run (I12). Nothing if it is not held here."""
        renewal = self._of_run.get(run_id)
        if renewal is None:
            return
        if renewal.under_way:
            renewal.again = True
        else:
            self._begin(renewal)

    def _begin(self, renewal: Renewal) -> None:
        if self._tasks.closed:
            return  # a signal that came while the process stops: what it held runs out
        renewal.under_way = True
        self._tasks.spawn("renew_lease", self._renew(renewal))

    async def _renew(self, renewal: Renewal) -> None:
        try:
            await renewal.renew()
        except StoreError as error:
            _log.warning("lease_not_renewed", run_id=renewal.run_id, error=type(error).__name__)
            self._stop_if_late(renewal)
        finally:
            renewal.under_way = False
        if renewal.again and renewal in self._held:
            renewal.again = False
            self._begin(renewal)

    def _stop_if_late(self, renewal: Renewal) -> None:
        # Counted from when the last successful one was sent: others may soon believe that the holder is dead.
        if renewal in self._held and renewal.lease.must_stop(self._clock.monotonic()):
            renewal.lose()
