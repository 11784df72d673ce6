"""Ends the provider's session: what a disconnect does not do."""

from typing import Any, cast

from botocore.exceptions import ClientError

from adapters.agentcore.clients import Connections, called
from adapters.agentcore.failures import failure_of
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
            runtime = self._runtime_of(connections, arn) if profile.managed else arn
            asked: dict[str, Any] = {"agentRuntimeArn": runtime, "runtimeSessionId": session_id}
            if profile.qualifier and not profile.managed:
                asked["qualifier"] = profile.qualifier
            try:
                connections.calls.stop_runtime_session(**asked)
            except ClientError as error:
                if cast("Any", error.response).get("Error", {}).get("Code") != _GONE:
                    raise

        try:
            await called(work, failure_of)
        except HarnessError as failure:
            _log.warning("session_not_stopped", code=failure.code)
            return False
        return True

    def _runtime_of(self, connections: Connections, arn: str) -> str:
        known = self._runtimes.get(arn)
        if known is None:
            harness = connections.control.get_harness(harnessId=arn.rpartition("/")[2])["harness"]
            known = str(harness["environment"]["agentCoreRuntimeEnvironment"]["agentRuntimeArn"])
            if len(self._runtimes) >= MAX_REMEMBERED:
                self._runtimes.clear()
            self._runtimes[arn] = known
        return known
