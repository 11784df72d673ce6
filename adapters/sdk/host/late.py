"""What a provider still says of a run that is over: discarded, counted, and said while it goes on (worker protocol, Operations)."""

from adapters.sdk.logs import get_logger

_STEP = 10
_log = get_logger(__name__)


class LateEvents:
    """The late events of one run. A log line tells of the first, of the tenth, the hundredth and so on, and the last one of them all: a provider that
    never ends is heard of too, and one that floods does not flood the log (I35).
    """

    def __init__(self, run_id: str) -> None:
        self.count = 0
        self._run_id = run_id
        self._told = 0
        self._tell_at = 1

    def add(self) -> None:
        """One more came."""
        self.count += 1
        if self.count >= self._tell_at:
            self._tell_at *= _STEP
            self._tell()

    def end(self) -> None:
        """No more will come."""
        if self.count != self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = self.count
        _log.warning("late_events_discarded", run_id=self._run_id, count=self.count)
