"""Ends the provider's session: what a disconnect does not do."""

from typing import Any, cast

from botocore.exceptions import ClientError

from adapters.agentcore.clients import Clients, Connections, called
from adapters.agentcore.failures import failure_of
from adapters.agentcore.locating import HarnessLocator
from adapters.agentcore.profile import Profile
from adapters.sdk.errors import HarnessError
from adapters.sdk.logs import get_logger

MAX_REMEMBERED = 10_000
_GONE = "ResourceNotFoundException"
_log = get_logger(__name__)


class Stopper:
    """Of one adapter process. Remembers which runtime a harness runs in: the service asks for its name, and only the control plane tells it."""

    def __init__(self) -> None:
        self._runtimes: dict[str, str] = {}

    async def stop(self, connections: Connections, profile: Profile, arn: str, session_id: str) -> bool:
        """Stops a session; whether it is stopped now. A failure is logged by its code alone, and changes nothing else: sessions end by themselves."""

        def work() -> None:
            try:
                runtime = self._runtime_of(connections, arn) if profile.managed else arn
                asked: dict[str, Any] = {"agentRuntimeArn": runtime, "runtimeSessionId": session_id}
                if profile.qualifier and not profile.managed:
                    asked["qualifier"] = profile.qualifier
                connections.calls.stop_runtime_session(**asked)
            except ClientError as error:
                # No such session, or no such harness any more: it is over.
                if cast("Any", error.response).get("Error", {}).get("Code") != _GONE:
                    raise

        try:
            await called(work, failure_of)
        except HarnessError as failure:
            _log.warning("session_not_stopped", code=failure.code)
            return False
        return True

    async def stop_closed(
        self, clients: Clients, profile: Profile, locator: HarnessLocator, agent_id: str, session_id: str
    ) -> None:
        """Stops the session of a conversation that is closed, with no runtime of it at hand. Raises HarnessError if its harness cannot be found out."""
        if not profile.stop_session:
            return
        arn = await locator.known_arn(agent_id) if profile.managed else profile.runtime_arn
        if not arn:
            # Sessions end with their harness.
            return
        connections = await clients.acquire(profile)
        try:
            await self.stop(connections, profile, arn, session_id)
        finally:
            await clients.release(connections)

    def _runtime_of(self, connections: Connections, arn: str) -> str:
        known = self._runtimes.get(arn)
        if known is None:
            harness = connections.control.get_harness(harnessId=arn.rpartition("/")[2])["harness"]
            known = str(harness["environment"]["agentCoreRuntimeEnvironment"]["agentRuntimeArn"])
            if len(self._runtimes) >= MAX_REMEMBERED:
                self._runtimes.clear()
            self._runtimes[arn] = known
        return known
