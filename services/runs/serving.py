"""Whether a harness, as it is now, still serves what a run needs of it: an adapter may lose a capability after an agent was saved.

Pure. The catalog asked the same before it saved the version; what was true then need not be true with the adapter's next version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from harness.files.v1 import file_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.capabilities import Need, approval_needs, file_needs, needs, unmet
from services.common.errors import FieldIssue, HarnessError, Reason
from services.runs.plan import Plan
from services.runs.tools.grant import Grant, needs_approval

MAX_SHOWN: Final = 900
"""Characters of the message of a run that fails for it (events, run.failed)."""


class Unstartable(HarnessError):
    """What a version of an agent needs is not to be had now: an issue a field, each with what to do."""

    @property
    def told(self) -> str:
        """The issues in one sentence each, for where there are no details."""
        text = " ".join(f"{issue.path}: {issue.message}" for issue in self.details)
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"


class Unserved(Unstartable):
    """The harness does not serve what is asked of it."""

    def __init__(self, plan: Plan, details: Sequence[FieldIssue]) -> None:
        harness = plan.version.blueprint.harness.id
        super().__init__(
            Reason.HARNESS_CAPABILITY_UNSUPPORTED,
            f"Harness {harness}, as it is now, does not serve version {plan.version.version} of the agent: see the details. Save a version "
            "that it serves and clear the conversation, or ask the operator for the harness as it was.",
            details=details,
        )


class ToolsMissing(Unstartable):
    """A run cannot be given the tools its agent is bound to: none starts without a tool that its author counted on."""

    def __init__(self, plan: Plan, details: Sequence[FieldIssue]) -> None:
        super().__init__(
            Reason.CONFIGURATION_INVALID,
            f"Version {plan.version.version} of the agent has tools that are not to be had now: see the details.",
            details=details,
        )


class FilesMissing(Unstartable):
    """A start names files that are not there, whoever else may have them (I2)."""

    def __init__(self, numbers: Iterable[int]) -> None:
        message = "There is no such file: upload it, or name another. Files are kept for a time."
        super().__init__(
            Reason.INVALID_REQUEST,
            "The request has invalid fields.",
            details=[FieldIssue(f"files[{number}]", "file_unknown", message) for number in numbers],
        )


def check_agent(plan: Plan) -> None:
    """Errors: `Unserved` when the harness lacks what the version of the plan needs."""
    _check(plan, needs(plan.version.blueprint), "blueprint.")


def granted(plan: Plan, grants: Sequence[Grant], *, has_broker: bool) -> Plan:
    """The plan with what its agent may call, as the operator registers it now. Errors: `ToolsMissing` where that is not what its version is bound to,
    `Unserved` as for `check_grants`.
    """
    if not has_broker:
        message = "This mesh has no tool broker: the operator sets HARNESS_TOOL_FACADE_LISTEN of runs, or the agent goes without."
        raise ToolsMissing(plan, [FieldIssue("blueprint.tools.bindings", "tools_unavailable", message)])
    registered = {grant.descriptor.tool_id for grant in grants}
    if missing := [
        FieldIssue(f"blueprint.tools.bindings[{number}].tool_id", "tool_unregistered", _gone(binding.tool_id))
        for number, binding in enumerate(plan.version.blueprint.tools.bindings)
        if binding.tool_id not in registered
    ]:
        raise ToolsMissing(plan, missing)
    plan = replace(plan, grants=tuple(grants))
    check_grants(plan)
    return plan


def _gone(tool_id: str) -> str:
    return (
        f"The operator registers no tool {tool_id} any more: have it registered again, or save a version without it and "
        "clear the conversation."
    )


def check_grants(plan: Plan) -> None:
    """The same of the tools that the plan's agent may call now: a tool that an operator made sensitive since needs a harness that can wait for a person,
    or the run would end in the middle of its call. Errors: `Unserved`.
    """
    waiting = {grant.descriptor.tool_id for grant in plan.grants if needs_approval(grant)}
    _check(plan, approval_needs(plan.version.blueprint.tools, waiting), "blueprint.")


def check_again(plan: Plan) -> None:
    """The same of all that is known of a run before it begins, where its harness turns out to be another than the one that was looked at. Errors:
    `Unserved`.
    """
    check_agent(plan)
    check_grants(plan)
    _check(plan, file_needs(plan.files), "")


def check_start(plan: Plan, files: Sequence[str]) -> None:
    """The same for a start, with the ids of its files, of which nothing else is known yet. Errors: `Unserved`."""
    check_agent(plan)
    if files:
        _check(plan, file_needs(runtime_pb2.FileRef(file_id=file_id) for file_id in files), "")


def with_files(plan: Plan, file_ids: Sequence[str], known: Mapping[str, file_pb2.File]) -> Plan:
    """The plan with the files that a start names. Errors: `FilesMissing` for those that its owner does not have, `Unserved` for those that the harness
    does not take.
    """
    if missing := [number for number, file_id in enumerate(file_ids) if file_id not in known]:
        raise FilesMissing(missing)
    plan = replace(plan, files=tuple(file_ref(file_id, known) for file_id in file_ids))
    _check(plan, file_needs(plan.files), "")
    return plan


def file_ref(file_id: str, known: Mapping[str, file_pb2.File]) -> runtime_pb2.FileRef:
    """What a runtime is told of a file; of one that was deleted meanwhile the id alone, which it finds gone when it reads."""
    file = known.get(file_id)
    if file is None:
        return runtime_pb2.FileRef(file_id=file_id)
    return runtime_pb2.FileRef(file_id=file_id, name=file.name, media_type=file.media_type, size=file.size)


def _check(plan: Plan, wanted: Iterable[Need], prefix: str) -> None:
    found = unmet(wanted, plan.profile.descriptor.capabilities, plan.version.blueprint.harness.id)
    issues = [issue._replace(path=f"{prefix}{issue.path}") for issue in found]
    if issues:
        raise Unserved(plan, issues)
