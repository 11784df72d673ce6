"""Section 9: skills of an agent that the profile has, lacks, or blocks."""

import re
from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf import json_format

from conformance.cases.registry import case
from conformance.failure import Broken, CannotExpressError, expect
from conformance.kit import Kit
from conformance.plane.binding import Binding
from conformance.plane.run import Run, kind, kinds, text_of
from conformance.scenario import Say, Steps, UseSkill
from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import error_pb2

MISSING = "kit-skill-that-no-profile-has"
# How a defect of the target's own ends a call; it says nothing of a skill.
DEFECTS = ("INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "UNAVAILABLE")
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


def _known(kit: Kit) -> list[tuple[str, str]]:
    """Two skills of the profile, each with a word that stands in it."""
    known = sorted(kit.driver.skills().items())
    if len(known) < 2:
        raise CannotExpressError("The scenario driver names no skills of the profile: see Driver.skills.")
    return known[:2]


def _agent(kit: Kit, *skills: str) -> Binding:
    """A binding of an agent with these skills, whose runtime is not made yet."""
    binding = kit.unmade()
    binding.skills = skills
    return binding


async def _said(kit: Kit, binding: Binding, steps: Steps) -> Run:
    run = binding.run(kit.message(steps))
    await run.play()
    return run


@case("R9.1", "skills that the profile has")
async def r9_1_there(kit: Kit) -> None:
    known = _known(kit)
    if kit.shared is not None:
        # A worker was bound with them.
        binding = await kit.binding()
    else:
        binding = _agent(kit, *(skill for skill, _ in known))
        await binding.create()
    for skill, word in known:
        run = await _said(kit, binding, (UseSkill(skill),))
        run.expect_end("run_completed")
        expect(word in text_of(run.drafts), f"The model used the skill {skill!r} and got nothing of its content.")


async def _issues(kit: Kit, *skills: str) -> dict[str, error_pb2.Issue]:
    """What Evaluate says of the skills of an agent, by path."""
    blueprint = _agent(kit, *skills).blueprint()
    request = adapter_service_pb2.EvaluateRequest(blueprint=blueprint, placement=kit.setting.placement)
    json_format.ParseDict(kit.setting.profile_settings, request.profile_settings)
    call = kit.target.adapter.Evaluate(request, timeout=30, metadata=kit.target.metadata)
    response: adapter_service_pb2.EvaluateResponse = await kit.target.ask("Evaluate", call)
    return {issue.path: issue for issue in response.issues if issue.path.startswith("skills")}


@case("R9.2", "Evaluate names the skills that are missing")
async def r9_2_evaluate(kit: Kit) -> None:
    (first, _), (second, _) = _known(kit)
    known = await _issues(kit, first, second)
    expect(not known, f"A skill that the profile has was refused at {next(iter(known), '')}.")
    other = f"{MISSING}-either"
    found = await _issues(kit, first, MISSING, second, other)
    expect(set(found) == {"skills[1]", "skills[3]"}, f"Missing are skills[1] and skills[3], refused {sorted(found)}.")
    for path, skill in (("skills[1]", MISSING), ("skills[3]", other)):
        issue = found[path]
        expect(_CODE.fullmatch(issue.code) is not None, f"The issue at {path} has the code {issue.code!r}.")
        expect(skill in issue.message, f"The issue at {path} does not name the skill: {issue.message[:200]!r}.")


async def _refused(kit: Kit, skills: Sequence[str], steps: Steps, what: str) -> None:
    """An agent that cannot have one of its skills: nothing of it runs, and its failure says so."""
    binding = _agent(kit, *skills)
    try:
        response: adapter_service_pb2.CreateRuntimeResponse = await binding.create_call(binding.fence())
        binding.incarnation = response.incarnation
        await binding.initialize_call()
    except grpc.aio.AioRpcError as error:
        refusal = kit.target.note(error, "CreateRuntime or Initialize")
        expect(refusal.code not in DEFECTS, f"A runtime with {what} was refused with {refusal}.")
        return
    run = await _said(kit, binding, steps)
    if kind(run.last) != "run_failed":
        raise Broken(f"An agent ran with {what}: its run ended with {kind(run.last)}.")
    failed = run.last.payload.run_failed
    name = error_pb2.ErrorCategory.Name(failed.category)
    expect(failed.category == error_pb2.ERROR_CATEGORY_CONFIGURATION, f"A run with {what} failed with {name}.")
    expect("content_delta" not in kinds(run.drafts), f"The model spoke before the run with {what} failed.")


@case("R9.3", "an agent with a skill that is missing")
async def r9_3_missing(kit: Kit) -> None:
    (first, _), _ = _known(kit)
    await _refused(kit, (first, MISSING), (Say("without it"),), "a skill that the profile does not have")


@case("R9.4", "an agent with a skill that is blocked")
async def r9_4_blocked(kit: Kit) -> None:
    (first, _), _ = _known(kit)
    blocked = kit.driver.blocked_skill()
    if not blocked:
        raise CannotExpressError("The scenario driver names no skill that is blocked: see Driver.blocked_skill.")
    for steps in ((Say("without it"),), (UseSkill(blocked),)):
        await _refused(kit, (first, blocked), steps, "a skill that is blocked")


@case("R9.5", "skills of another agent")
async def r9_5_apart(kit: Kit) -> None:
    (first, word), (second, other_word) = _known(kit)
    one, other = _agent(kit, first), _agent(kit, second)
    await one.create()
    await other.create()
    for binding, own, foreign, hidden in ((one, word, second, other_word), (other, other_word, first, word)):
        tried = await _said(kit, binding, (UseSkill(foreign),))
        told = b"".join(draft.SerializeToString() for draft in tried.drafts)
        expect(hidden.encode() not in told, f"An agent used the skill {foreign!r}, which it does not name.")
        skill = first if foreign == second else second
        run = await _said(kit, binding, (UseSkill(skill),))
        run.expect_end("run_completed")
        expect(own in text_of(run.drafts), f"An agent beside another cannot use its own skill {skill!r}.")
