"""The server's verdict on a draft: pure, from the draft and one snapshot of the catalog (REST API, agent drafts; I16, I17)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from harness.adapter.v1.adapter_service_pb2 import EvaluateResponse
from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import Capability
from harness.common.v1.placement_pb2 import PLACEMENT_SANDBOX_POD, Placement
from services.catalog.blueprint import DEFAULT_PROFILE, OPTIONS_PATH, normalized, shape_of
from services.catalog.capabilities import capability_issues, in_effect
from services.catalog.descriptor_policy import KnownDescriptor, constraints_problem
from services.catalog.disclosure import key_problem, safe_text
from services.catalog.fingerprint import config_fingerprint
from services.catalog.operator_file import ProfileEntry
from services.catalog.snapshot import PLACEMENTS, HarnessState, Snapshot, claims_of
from services.catalog.tool_bindings import approval_issues, binding_issues
from services.catalog.tool_registry import Tools
from services.common.errors import FieldIssue, Reason

MAX_ISSUES: Final = 100
_VARIABLE: Final = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]{0,63})\}\}")


@dataclass(frozen=True)
class Verdict:
    """What holds of a draft under one catalog. `normalized` is None and `fingerprint` empty when it cannot be normalised."""

    catalog_revision: str
    issues: tuple[FieldIssue, ...] = ()
    normalized: pb.AgentBlueprint | None = None
    fingerprint: str = ""
    capabilities: Mapping[str, Capability] = field(default_factory=dict[str, Capability])

    @property
    def valid(self) -> bool:
        """Whether it can be saved: no issue of any kind."""
        return not self.issues and self.normalized is not None

    def with_issues(self, *more: FieldIssue) -> Verdict:
        """The verdict with more issues, at most 100; the last says when there were more."""
        issues = [*self.issues, *more]
        if len(issues) > MAX_ISSUES:
            left_out = len(issues) - MAX_ISSUES + 1
            issues[MAX_ISSUES - 1 :] = [
                FieldIssue("", "too_many_issues", f"{left_out} more problems are left out: fix these first.")
            ]
        return replace(self, issues=tuple(issues))


@dataclass(frozen=True)
class Selection:
    """What a valid selection picked."""

    state: HarnessState
    known: KnownDescriptor
    profile: ProfileEntry | None


def judge(draft: pb.AgentBlueprint, snapshot: Snapshot) -> Verdict:
    """The verdict that needs no adapter: every problem at once."""
    shape = shape_of(draft)
    issues = list(shape.issues)
    selection = _select(draft.harness, snapshot, issues)
    verdict = Verdict(snapshot.revision)
    if selection is None or shape.options is None:
        return verdict.with_issues(*issues)
    options = selection.known.options.with_defaults(shape.options)
    blueprint = normalized(draft, options)
    shown = None if snapshot.shown is None else snapshot.shown.get(selection.state.adapter.harness_id, {})
    profile_id = "" if selection.profile is None else selection.profile.id
    capabilities = claims_of(selection.known, profile_id, shown)
    issues += _option_issues(options, selection.known)
    issues += _prompt_issues(blueprint.prompt)
    issues += _policy_issues(blueprint, snapshot)
    issues += _missing_issues(blueprint)
    issues += binding_issues(blueprint, snapshot.tools)
    issues += capability_issues(blueprint, capabilities, selection.state.adapter.harness_id)
    issues += approval_issues(blueprint, snapshot.tools, capabilities, selection.state.adapter.harness_id)
    if selection.profile is not None:
        issues += _profile_issues(blueprint, selection.profile, selection.known)
    return Verdict(
        snapshot.revision,
        normalized=blueprint,
        fingerprint=config_fingerprint(blueprint),
        capabilities=dict(capabilities),
    ).with_issues(*issues)


def evaluated(verdict: Verdict, answer: EvaluateResponse, tools: Tools) -> Verdict:
    """The verdict with what the adapter itself found.

    Its normalised options are not taken over: a fingerprint must not depend on whether the adapter was up (I17); defaults
    are those of the descriptor's schema.
    """
    if verdict.normalized is None:
        return verdict
    capabilities = in_effect(verdict.capabilities, _safe_capabilities(answer))
    harness_id = verdict.normalized.harness.id
    issues = [_safe_issue(issue.path, issue.code, issue.message) for issue in answer.issues]
    known = set(verdict.issues)
    needed = capability_issues(verdict.normalized, capabilities, harness_id)
    asked = approval_issues(verdict.normalized, tools, capabilities, harness_id)
    issues += [issue for issue in (*needed, *asked) if issue not in known]
    return replace(verdict, capabilities=capabilities).with_issues(*issues)


def stale_issue(snapshot_revision: str) -> FieldIssue:
    """Says that the client's catalog is no longer current."""
    return FieldIssue(
        "",
        Reason.HARNESS_VALIDATION_STALE.value,
        f"The catalog has changed and is {snapshot_revision} now: load the harnesses again and validate against it.",
    )


def _safe_issue(path: str, code: str, message: str) -> FieldIssue:
    # I22: the adapter's text reaches an author only if it holds nothing that may not be shown.
    return FieldIssue(
        safe_text(path, "", 512),
        code if re.fullmatch(r"[a-z][a-z0-9_.]{0,63}", code) else "refused_by_harness",
        safe_text(message, "The harness refuses this value.", 1000) or "The harness refuses this value.",
    )


def _safe_capabilities(answer: EvaluateResponse) -> dict[str, Capability]:
    safe: dict[str, Capability] = {}
    for key, said in answer.capabilities.items():
        safe[key] = Capability(level=said.level, explanation=safe_text(said.explanation, "", 1000))
        if constraints_problem(said.constraints, key) is None:
            safe[key].constraints.CopyFrom(said.constraints)
    return safe


def _select(wanted: pb.HarnessSelection, snapshot: Snapshot, issues: list[FieldIssue]) -> Selection | None:
    state = snapshot.harnesses.get(wanted.id)
    if state is None:
        known = ", ".join(sorted(snapshot.harnesses)[:20]) or "none"
        message = f"There is no such harness here; there is: {known}."
        issues.append(FieldIssue("harness.id", Reason.HARNESS_UNKNOWN.value, message))
        return None
    if not state.adapter.enabled:
        message = "The operator disabled this harness: choose another one."
        issues.append(FieldIssue("harness.id", Reason.HARNESS_DISABLED.value, message))
    elif state.blocked:
        message = f"This harness is blocked: {state.blocked}"
        issues.append(FieldIssue("harness.id", Reason.HARNESS_CONTRACT_INCOMPATIBLE.value, message))
    elif state.known is None:
        message = "The adapter of this harness was never seen, so nothing can be checked: start it, then try again."
        issues.append(FieldIssue("harness.id", Reason.HARNESS_UNAVAILABLE.value, message))
    profile = state.adapter.profiles.get(wanted.profile_id or DEFAULT_PROFILE)
    if profile is None:
        message = f"The harness has no such profile; it has: {', '.join(state.adapter.profiles)}."
        issues.append(FieldIssue("harness.profile_id", "profile_unknown", message[:1000]))
    return None if state.known is None else Selection(state, state.known, profile)


def _option_issues(options: Mapping[str, Any], known: KnownDescriptor) -> Iterator[FieldIssue]:
    yield from known.options.issues(options, OPTIONS_PATH)
    for key in options:
        problem = key_problem(key)
        # Also where a schema allows further keys: no credential, command, image or environment in a blueprint.
        if problem is not None and problem.startswith("a key that names"):
            yield FieldIssue(f"{OPTIONS_PATH}.{key}"[:512], "forbidden_option", f"The option is {problem}: remove it.")


def _prompt_issues(prompt: pb.PromptSpec) -> Iterator[FieldIssue]:
    used = set(_VARIABLE.findall(prompt.system))
    for name in sorted(used - set(prompt.variables))[:MAX_ISSUES]:
        message = f"The template uses {{{{{name}}}}}, which prompt.variables does not hold: add it."
        yield FieldIssue("prompt.system", "template_variable_missing", message)
    for name in sorted(set(prompt.variables) - used):
        message = f"The template does not use {{{{{name}}}}}: remove the variable or use it."
        yield FieldIssue(f'prompt.variables["{name}"]', "template_variable_unused", message)
    for number in range(len(prompt.context_sources)):
        message = "No context sources are set up here: remove it."
        yield FieldIssue(f"prompt.context_sources[{number}]", "context_source_unknown", message)


def _missing_issues(blueprint: pb.AgentBlueprint) -> Iterator[FieldIssue]:
    """What no harness can make up for: the control plane itself has no service for it yet. Nothing may be saved that would be ignored when it runs."""
    if blueprint.memory.enabled:
        yield FieldIssue("memory.enabled", "not_available", "This mesh has no memory service yet: disable memory.")
    if blueprint.delegation.agents:
        message = "This mesh delegates to no other agents yet: remove the agents."
        yield FieldIssue("delegation.agents", "not_available", message)


def _policy_issues(blueprint: pb.AgentBlueprint, snapshot: Snapshot) -> Iterator[FieldIssue]:
    profiles = snapshot.retention_profiles
    chosen = {"thread": blueprint.thread.retention_profile, "memory": blueprint.memory.retention_profile}
    for section, retention in chosen.items():
        if retention not in profiles:
            message = f"There is no such retention profile; there is: {', '.join(profiles)}."
            yield FieldIssue(f"{section}.retention_profile", "retention_profile_unknown", message)
    if blueprint.memory.write_scope == pb.MEMORY_SCOPE_ORGANIZATION:
        message = "The organisation's memory is read-only to agents: choose user or agent."
        yield FieldIssue("memory.write_scope", "not_allowed", message)
    model = blueprint.model
    if model.policy == pb.MODEL_POLICY_HARNESS_DEFAULT and model.alias:
        message = "An alias needs model.policy alias: set it, or remove the alias."
        yield FieldIssue("model.alias", "not_allowed", message)


def _profile_issues(
    blueprint: pb.AgentBlueprint, profile: ProfileEntry, known: KnownDescriptor
) -> Iterator[FieldIssue]:
    placement: Placement.ValueType = PLACEMENTS[profile.placement]
    if placement not in known.descriptor.placements:
        message = f"The harness cannot run with the profile's placement {profile.placement}: choose another profile."
        yield FieldIssue("harness.profile_id", Reason.HARNESS_CAPABILITY_UNSUPPORTED.value, message)
    if blueprint.workspace.persistence != pb.WORKSPACE_PERSISTENCE_NONE and placement != PLACEMENT_SANDBOX_POD:
        message = (
            "A workspace needs a profile that runs in a sandbox: choose one, or set workspace.persistence to none."
        )
        yield FieldIssue("workspace.persistence", Reason.HARNESS_CAPABILITY_UNSUPPORTED.value, message)
    most = profile.limits.max_run_seconds
    if most is not None and blueprint.limits.max_run_seconds > most:
        message = f"The profile allows at most {most} seconds: set limits.max_run_seconds to {most} or less."
        yield FieldIssue("limits.max_run_seconds", "out_of_range", message)
    model = blueprint.model
    if model.policy == pb.MODEL_POLICY_ALIAS and model.alias not in profile.model_aliases:
        aliases = ", ".join(profile.model_aliases) or "none"
        message = f"The profile has no such model alias; it has: {aliases}."
        yield FieldIssue("model.alias", "model_alias_unknown", message[:1000])
