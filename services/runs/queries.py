"""What a caller may see of its runs: the owner is part of every look-up (I2)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

from harness.run.v1 import run_service_pb2
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request, not_found
from services.common.store import InvalidQuery
from services.runs import resume
from services.runs.cancelling import as_seen
from services.runs.engine import Engine
from services.runs.run import Run, Status

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 200


class Queries:
    """The caller's runs, each as its log says it stands."""

    def __init__(self, engine: Engine, run_of: Callable[[str], Run | None]) -> None:
        """`run_of` knows the runs that are executed in this process, or were lately."""
        self._engine = engine
        self._run_of = run_of

    async def owned(self, subject: str, run_id: str) -> Run:
        """The caller's run as it is stored; `not_found` for any other (I2)."""
        run = await self._engine.store.get_owned(self._engine.identity.owner_digest(subject), run_id)
        if run is None:
            raise not_found("run")
        return run

    async def watchable(self, subject: str, run_id: str) -> Run:
        """The caller's run, if only to follow it: one that is executed here, or was lately, needs no read. Errors: as `owned`."""
        run = self._run_of(run_id)
        owner = self._engine.identity.owner_digest(subject)
        is_kept = run is not None and (run.expires_at is None or self._engine.now() < run.expires_at)
        if run is not None and is_kept and run.owner == owner:  # I2: as in the store, for a run's owner never changes
            return run
        return await self.owned(subject, run_id)

    async def get(self, subject: str, run_id: str) -> Run:
        """The caller's run, its status never behind its log."""
        return await as_seen(self._engine.log, await self.owned(subject, run_id))

    async def pending_interrupt(
        self, subject: str, agent_id: str, conversation_id: str
    ) -> run_service_pb2.InterruptState | None:
        """What the caller's conversation waits for, once the run that asked has told it; None: nothing, or no such conversation (I2)."""
        try:
            binding = await self._engine.sessions.find(subject, agent_id, conversation_id)
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return None
        if not resume.is_pending(binding):
            return None
        run = await self._engine.store.get(binding.interrupt.run_id)
        if run is not None and (await as_seen(self._engine.log, run)).status is not Status.INTERRUPTED:
            # I24: shown only once its run's terminal is in the log; one that ended otherwise asks nothing.
            return None
        return resume.state_of(binding)

    async def page(
        self, subject: str, agent_id: str, conversation_id: str, size: int, token: str
    ) -> tuple[list[Run], str]:
        """A page of the caller's runs, newest first, and where the next starts. Errors: `invalid_request`."""
        if conversation_id and not agent_id:
            raise invalid_request(
                [FieldIssue("agent_id", "required", "A conversation is named together with its agent.")]
            )
        owner = self._engine.identity.owner_digest(subject)
        try:
            runs, after = await self._engine.store.page_of_owner(
                owner, agent_id, conversation_id, limit=min(size or DEFAULT_PAGE, MAX_PAGE), after=_position(token)
            )
        except InvalidQuery:
            raise _bad_token() from None
        shown = [await as_seen(self._engine.log, run) for run in runs]
        return shown, _token(after)


def is_over(run: Run, after: int) -> bool:
    """Whether a run whose events are deleted, or about to be, has none after the cursor. Of every other run the log itself says that.

    Errors: `cursor_expired` for a cursor before the end.
    """
    if not run.trimmed:
        return False
    if after < run.last_sequence:
        raise HarnessError(
            Reason.CURSOR_EXPIRED, f"The events after {after} are no longer kept: the run's retention is over."
        )
    return True


def _token(position: str | None) -> str:
    return "" if position is None else base64.urlsafe_b64encode(position.encode()).rstrip(b"=").decode()


def _position(token: str) -> str | None:
    if not token:
        return None
    try:
        position = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise _bad_token() from None
    if _token(position) != token:  # one position, one token
        raise _bad_token()
    return position


def _bad_token() -> HarnessError:
    return invalid_request(
        [FieldIssue("page_token", "invalid_page_token", "Send the next_page_token of the page before, or none.")]
    )
