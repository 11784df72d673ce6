"""The adapter: its descriptor, what it can tell of a blueprint and of its own health. Needs no SDK: without one it says so."""

import asyncio
import importlib
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from adapters.agentcore.descriptor import MAX_TOOLS, SDK, describe
from adapters.agentcore.locating import HarnessLocator, SharedHarness
from adapters.agentcore.options import DEFAULTS, read_options
from adapters.agentcore.profile import PER_AGENT, Profile, read_profile
from adapters.agentcore.sessions import AgentCoreSessions
from adapters.sdk.capabilities import UNSUPPORTED, capability
from adapters.sdk.contract import Evaluation, HarnessRuntime, Reconciled, RuntimeConstruction, plain
from adapters.sdk.errors import AuthenticationError, ConfigurationError, HarnessError, UnavailableError
from adapters.sdk.forms import ASK
from adapters.sdk.health import CONFIGURATION, Impaired, Probe
from adapters.sdk.models import model_of
from adapters.sdk.session import ClosedSession, ProviderSessionManager
from adapters.sdk.simple import BaseAdapter
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import blueprint_pb2, error_pb2, health_pb2, placement_pb2

if TYPE_CHECKING:
    from adapters.agentcore.clients import Clients
    from adapters.agentcore.provisioning.fleet import Fleet
    from adapters.agentcore.stopping import Stopper

_ONLY_MANAGED = (
    "stream.reasoning",
    "stream.usage",
    "interrupt.form_input",
    "interrupt.tool_approval",
    "interrupt.multi_tool",
    "tool.builtin",
)


class AgentCoreAdapter(BaseAdapter):
    """Amazon Bedrock AgentCore as a harness."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._descriptor = describe(_sdk_version())
        self._sessions = AgentCoreSessions(self._stop_session)
        self._shared: tuple[Clients, Stopper] | None = None
        self._loaded = False

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What it is."""
        return self._descriptor

    @property
    def session_manager(self) -> ProviderSessionManager:
        """Names sessions, and stops those of conversations that are closed."""
        return self._sessions

    async def health(self) -> Sequence[health_pb2.HealthCheck | Probe]:
        """Whether this process has credentials; whether the SDK is there is looked at by the host, from the descriptor."""
        return (Probe(CONFIGURATION, _look_at_environment),) if self._descriptor.sdk_version else ()

    async def evaluate(
        self,
        blueprint: blueprint_pb2.AgentBlueprint,
        placement: "placement_pb2.Placement.ValueType",
        profile_settings: Mapping[str, Any],
    ) -> Evaluation:
        """Whether profile and blueprint fit: settings, region, model, options, tools. Makes no call."""
        options = plain(blueprint.harness.options)
        try:
            profile = read_profile(profile_settings)
            if self._descriptor.sdk_version:
                await self._load()
                self._locator(profile)
            _check_region(profile)
        except ConfigurationError as error:
            return Evaluation(issues=[_issue("harness.profile_id", error)])
        issues: list[error_pb2.Issue] = []
        for path, check in (
            ("harness.options", lambda: read_options(options)),
            ("model.alias", lambda: model_of(blueprint.model, profile)),
            ("tools.bindings", lambda: _check_tools(blueprint, profile, options)),
        ):
            try:
                check()
            except ConfigurationError as error:
                issues.append(_issue(path, error))
        less = {} if profile.managed else {key: _not_custom() for key in _ONLY_MANAGED}
        return Evaluation(issues=issues, normalized_options={**DEFAULTS, **options}, capabilities=less)

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime. Raises UnavailableError without the SDK, ConfigurationError for settings or options that do not fit."""
        profile = read_profile(construction.profile_settings)
        await self._load()
        locator = self._locator(profile)
        clients, stopper = self._of_process()
        _check_region(profile)
        # Only here: the process starts without the SDK, and says what it lacks.
        from adapters.agentcore.runtime import AgentCoreRuntime

        return AgentCoreRuntime(construction, profile, locator, clients, self._sessions, stopper)

    async def reconcile_agents(
        self, profile_settings: Mapping[str, Any], agent_ids: Sequence[str], ended_agent_ids: Sequence[str]
    ) -> Reconciled:
        """Harnesses of agents, where the profile has one for each. Raises HarnessError."""
        profile = read_profile(profile_settings)
        if profile.mode != PER_AGENT:
            return Reconciled()
        _check_region(profile)
        await self._load()
        return await self._fleet_of_harnesses().reconcile(profile, agent_ids, ended_agent_ids)

    async def close(self) -> None:
        """Ends what is under way at the control plane, and its connections (AdapterCloser)."""
        if self._fleet is not None:
            await self._fleet.close()

    async def _stop_session(self, session: ClosedSession, session_id: str) -> None:
        """Ends the session of a closed conversation, whichever process had its runtime. Raises HarnessError."""
        if not session.profile_settings:
            # Nobody says where it is: it ends by itself when it is idle.
            return
        profile = read_profile(session.profile_settings)
        _check_region(profile)
        await self._load()
        clients, stopper = self._of_process()
        await stopper.stop_closed(clients, profile, self._locator(profile), session.agent_id, session_id)

    async def _load(self) -> None:
        """What needs the SDK, beside the event loop, for that takes most of a second (I23). Raises UnavailableError without it."""
        if self._loaded:
            return
        try:
            await asyncio.to_thread(_import_sdk)
        except ImportError as error:
            raise _sdk_missing(error) from None
        self._loaded = True

    def _of_process(self) -> "tuple[Clients, Stopper]":
        """What all of the process share."""
        if self._shared is None:
            from adapters.agentcore.clients import Clients
            from adapters.agentcore.stopping import Stopper

            self._shared = Clients(), Stopper()
        return self._shared

    def _locator(self, profile: Profile) -> HarnessLocator:
        if profile.mode != PER_AGENT:
            return SharedHarness(profile.harness_arn)
        return self._fleet_of_harnesses().locator(profile)

    def _fleet_of_harnesses(self) -> "Fleet":
        if self._fleet is None:
            from adapters.agentcore.provisioning.fleet import Fleet

            self._fleet = Fleet()
        return self._fleet


def _import_sdk() -> None:
    for name in ("runtime", "provisioning.fleet"):
        importlib.import_module(f"adapters.agentcore.{name}")


def _sdk_missing(error: ImportError) -> HarnessError:
    return UnavailableError(
        "boto3 is not installed here: install the extra `agentcore`.",
        code="sdk_missing",
        retryable=False,
        diagnostic=f"cannot import {error.name}",
    )


async def _look_at_environment() -> None:
    from adapters.agentcore.threads import in_thread

    await in_thread(_look_for_credentials, "look")
    if not _region_of_environment():
        raise Impaired("The process has no AWS_REGION: only profiles whose settings have a region work.")


def _look_for_credentials() -> None:
    import botocore.session

    from adapters.agentcore.failures import CREDENTIAL_ERRORS

    try:
        # botocore has no types of its own.
        found = cast("Any", botocore.session).get_session().get_credentials()
    except CREDENTIAL_ERRORS as error:
        # Of its text nothing is said: it names files and profiles of the machine (I22).
        raise AuthenticationError(
            f"The settings of this process for AWS give no credentials ({type(error).__name__}): mend them."
        ) from None
    if found is None:
        raise AuthenticationError(
            "The standard chain of AWS finds no credentials for this process: set a profile, a role or keys for it."
        )


def _region_of_environment() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


def _check_region(profile: Profile) -> None:
    if not profile.region and not _region_of_environment():
        raise ConfigurationError(
            "There is no region: give the profile's setting region, or set AWS_REGION for the adapter's process.",
            code="region_missing",
        )


def _check_tools(blueprint: blueprint_pb2.AgentBlueprint, profile: Profile, options: Mapping[str, Any]) -> None:
    count = len(blueprint.tools.bindings)
    if count and not profile.managed:
        raise ConfigurationError(
            "A custom runtime can call none of the agent's tools: remove them, or choose a profile with a managed harness.",
            code="tools_unsupported",
        )
    if count > MAX_TOOLS:
        raise ConfigurationError(f"An agent may have at most {MAX_TOOLS} tools here.", code="too_many_tools")
    if options.get("ask_person") and any(binding.tool_id == ASK for binding in blueprint.tools.bindings):
        raise ConfigurationError(
            f"The tool {ASK} has the name of the function that the option ask_person gives the model: leave out one of them.",
            code="tool_name_taken",
        )


def _not_custom() -> Any:
    return capability(UNSUPPORTED, "A custom runtime tells no more than text.")


def _issue(path: str, error: HarnessError) -> error_pb2.Issue:
    return error_pb2.Issue(path=path, code=error.code, message=error.message)


def _sdk_version() -> str:
    try:
        return metadata.version(SDK)
    except metadata.PackageNotFoundError:
        return ""
