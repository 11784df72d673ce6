"""The harnesses of all profiles that have one for each agent: found for turns, and brought to what is wanted."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from adapters.agentcore.clients import region_of
from adapters.agentcore.profile import Profile
from adapters.agentcore.provisioning.control import ControlFault, open_control
from adapters.agentcore.provisioning.provisioner import Provisioner
from adapters.agentcore.provisioning.wanted import Spec, Wanted
from adapters.sdk.contract import Reconciled
from adapters.sdk.errors import (
    NO_SIDE_EFFECTS,
    ConfigurationError,
    HarnessError,
    ThrottledError,
    UnavailableError,
)

_DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROLE = re.compile(r"arn:aws(-[^:\s]+)?:iam::([0-9]{12})?:role/[^\s]{1,512}")
_KEYS = ("deployment", "execution_role_arn")
_OPERATORS = frozenset(
    {
        "AccessDeniedException",
        "ValidationException",
        "UnrecognizedClientException",
        "NoCredentialsError",
        "NoRegionError",
        "harness_of_another_owner",
        "harness_create_failed",
    }
)
"""Faults that stay until an operator does something."""


@dataclass(frozen=True, slots=True)
class PerAgent:
    """The setting `per_agent` of a profile: which harnesses are its own, and what was approved for them."""

    deployment: str
    spec: Spec


def read_per_agent(profile: Profile) -> PerAgent:
    """Raises ConfigurationError that names the key that is wrong; of its value nothing is said (I18)."""
    settings: Mapping[str, Any] = profile.per_agent
    for key in settings:
        if key not in _KEYS:
            raise _wrong(f"per_agent.{key}", f"is unknown: use {', '.join(_KEYS)}")
    deployment, role = settings.get("deployment"), settings.get("execution_role_arn")
    if not isinstance(deployment, str) or not _DEPLOYMENT.fullmatch(deployment):
        raise _wrong("per_agent.deployment", "must be an id of 1 to 64 letters, digits, '.', '_' and '-'")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise _wrong("per_agent.execution_role_arn", "must be the ARN of a role")
    return PerAgent(deployment, Spec(role, profile.model))


class Fleet:
    """One provisioner for each deployment, region and endpoint. Used from one event loop."""

    def __init__(self) -> None:
        self._provisioners: dict[tuple[str, str, str], Provisioner] = {}

    def locator(self, profile: Profile) -> "AgentHarnesses":
        """Finds the harnesses of a profile. Raises ConfigurationError."""
        return AgentHarnesses(self._of(profile), read_per_agent(profile))

    async def reconcile(self, profile: Profile, agent_ids: Iterable[str], ended: Sequence[str] = ()) -> Reconciled:
        """One round for a profile (AgentReconciler). Raises HarnessError."""
        asked = read_per_agent(profile)
        wanted = [Wanted(asked.deployment, agent_id, asked.spec) for agent_id in agent_ids]
        try:
            done = await self._of(profile).reconcile(wanted, ended, asker=_digest(profile))
        except ControlFault as fault:
            raise _told(fault) from None
        return Reconciled(done.created, done.updated, done.removed, done.left, done.unlisted, done.faults)

    async def close(self) -> None:
        """Ends what is under way, and all connections."""
        provisioners, self._provisioners = list(self._provisioners.values()), {}
        for each in provisioners:
            await each.close()

    def _of(self, profile: Profile) -> Provisioner:
        endpoint = profile.control_endpoint_url or profile.endpoint_url
        deployment = read_per_agent(profile).deployment
        region = region_of(profile)
        key = (deployment, region, endpoint)
        if key not in self._provisioners:
            self._provisioners[key] = Provisioner(deployment, lambda: open_control(region, endpoint))
        return self._provisioners[key]


class AgentHarnesses:
    """The harness of each agent of a profile: known from the last round, or made when a turn comes before it (HarnessLocator)."""

    def __init__(self, provisioner: Provisioner, asked: PerAgent) -> None:
        self._provisioner = provisioner
        self._asked = asked

    def __repr__(self) -> str:
        return "AgentHarnesses()"

    async def arn_for(self, agent_id: str) -> str:
        """See HarnessLocator."""
        try:
            return await self._provisioner.arn(self._wanted(agent_id))
        except ControlFault as fault:
            raise _told(fault) from None

    async def known_arn(self, agent_id: str) -> str:
        """See HarnessLocator."""
        try:
            return await self._provisioner.known(self._wanted(agent_id))
        except ControlFault as fault:
            raise _told(fault) from None

    def forget(self, agent_id: str) -> None:
        """See HarnessLocator."""
        self._provisioner.forget(self._wanted(agent_id))

    def _wanted(self, agent_id: str) -> Wanted:
        return Wanted(self._asked.deployment, agent_id, self._asked.spec)


def _digest(profile: Profile) -> str:
    return hashlib.sha256(orjson.dumps(asdict(profile), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _told(fault: ControlFault) -> HarnessError:
    """The fault in the contract's words. Nothing was run yet, whatever it is."""
    code = fault.code[:128]
    if fault.throttled:
        message = "The provider makes no more harnesses for now."
        return ThrottledError(message, side_effects=NO_SIDE_EFFECTS, provider_code=code)
    if fault.code in _OPERATORS:
        message = "The agent's harness cannot be made: the operator has to look at the profile and at its permissions."
        return ConfigurationError(
            message, code="harness_not_provisioned", side_effects=NO_SIDE_EFFECTS, provider_code=code
        )
    message = "The agent's harness is not ready; try again."
    return UnavailableError(message, code="harness_not_provisioned", side_effects=NO_SIDE_EFFECTS, provider_code=code)


def _wrong(key: str, must: str) -> ConfigurationError:
    return ConfigurationError(f"The profile's setting {key} {must}.", code="profile_invalid")
