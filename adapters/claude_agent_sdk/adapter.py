"""The adapter: its descriptor, what it can tell of a blueprint and of its own health. Needs no SDK: without one it says so."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from typing import Any

from adapters.claude_agent_sdk.credentials import ELSEWHERE, FILE_VARIABLE, KEY_VARIABLE, credential
from adapters.claude_agent_sdk.descriptor import SDK, describe
from adapters.claude_agent_sdk.options import DEFAULTS, read_options
from adapters.claude_agent_sdk.profile import Profile, read_profile
from adapters.claude_agent_sdk.skills import unknown_skills
from adapters.sdk.contract import Evaluation, HarnessRuntime, RuntimeConstruction, plain
from adapters.sdk.errors import AuthenticationError, ConfigurationError, HarnessError, UnavailableError
from adapters.sdk.forms import ASK
from adapters.sdk.health import CONFIGURATION, Impaired, Probe
from adapters.sdk.models import model_of
from adapters.sdk.simple import BaseAdapter
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import blueprint_pb2, error_pb2, health_pb2, placement_pb2


class ClaudeAdapter(BaseAdapter):
    """The Claude Agent SDK as a harness."""

    def __init__(self, *, sandboxed: bool = False) -> None:
        """`sandboxed`: the process is the worker of a sandbox, where there is no credential and none is needed (I28)."""
        self._sandboxed = sandboxed
        self._descriptor = describe(_sdk_version())

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What it is."""
        return self._descriptor

    async def health(self) -> Sequence[health_pb2.HealthCheck | Probe]:
        """Whether this process has a credential; whether the SDK is there is looked at by the host, from the descriptor."""
        return () if self._sandboxed else (Probe(CONFIGURATION, _look_for_credential),)

    async def evaluate(
        self,
        blueprint: blueprint_pb2.AgentBlueprint,
        placement: "placement_pb2.Placement.ValueType",
        profile_settings: Mapping[str, Any],
    ) -> Evaluation:
        """Whether profile and blueprint fit: settings, model, options, skills. Looks at no file."""
        options = plain(blueprint.harness.options)
        issues: list[error_pb2.Issue] = []
        try:
            profile = read_profile(profile_settings)
        except ConfigurationError as error:
            return Evaluation(issues=[_issue("harness.profile_id", error)])
        for path, check in (
            ("harness.options", lambda: read_options(options)),
            ("model.alias", lambda: model_of(blueprint.model, profile)),
            ("harness.profile_id", lambda: _check_placement(placement, profile)),
            ("tools.bindings", lambda: _check_names(blueprint, options)),
        ):
            try:
                check()
            except ConfigurationError as error:
                issues.append(_issue(path, error))
        for skill in unknown_skills(blueprint.skills, profile):
            wrong = ConfigurationError(
                f"The profile has no skill {skill!r}: remove it, or choose a profile that has it.", code="skill_unknown"
            )
            issues.append(_issue(f"skills[{list(blueprint.skills).index(skill)}]", wrong))
        return Evaluation(issues=issues, normalized_options={**DEFAULTS, **options})

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime. Raises UnavailableError without the SDK, ConfigurationError for settings or options that do not fit."""
        try:
            # Half a second of work: not on the event loop, where every turn of the host would wait for it (I23).
            runtime = await asyncio.to_thread(import_module, "adapters.claude_agent_sdk.runtime")
        except ImportError as error:
            raise UnavailableError(
                "The Claude Agent SDK is not installed here: install the extra `claude`.",
                code="sdk_missing",
                retryable=False,
                diagnostic=f"cannot import {error.name}",
            ) from None
        made: HarnessRuntime = runtime.ClaudeRuntime(construction)
        return made


async def _look_for_credential() -> None:
    if os.environ.get(FILE_VARIABLE) == ELSEWHERE:
        return
    # In part: a profile may have a credential of its own, or a model endpoint.
    if not os.environ.get(FILE_VARIABLE) and not os.environ.get(KEY_VARIABLE):
        raise Impaired(
            f"There is no credential for the model: set {FILE_VARIABLE} to a file with a key, or {KEY_VARIABLE}, where the adapter is started, "
            f"and start it again; or set {FILE_VARIABLE} to {ELSEWHERE} if each profile has a key or runs in a sandbox."
        )
    try:
        credential(Profile(), os.environ)
    except AuthenticationError as error:
        raise Impaired(error.message) from None


def _check_placement(placement: "placement_pb2.Placement.ValueType", profile: Profile) -> None:
    sandboxed = placement == placement_pb2.PLACEMENT_SANDBOX_POD
    given = [key for key in ("credential_file", "credential_env", "base_url") if getattr(profile, key)]
    if sandboxed and given:
        raise ConfigurationError(
            f"The profile runs in a sandbox, which reaches its model through the profile's model_endpoint: remove {given[0]} from its settings.",
            code="profile_invalid",
        )


def _check_names(blueprint: blueprint_pb2.AgentBlueprint, options: Mapping[str, Any]) -> None:
    if options.get("ask_person") is True and any(one.tool_id == ASK for one in blueprint.tools.bindings):
        raise ConfigurationError(
            f"The tool {ASK} and the option of this name would give the model two tools of one name: remove one of them.",
            code="tool_name_taken",
        )


def _issue(path: str, error: HarnessError) -> error_pb2.Issue:
    return error_pb2.Issue(path=path, code=error.code, message=error.message)


def _sdk_version() -> str:
    try:
        return metadata.version(SDK)
    except metadata.PackageNotFoundError:
        return ""
