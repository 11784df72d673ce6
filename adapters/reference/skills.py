"""Skills: texts that the operator's profile gives by id, of which an agent has those that it names, and no others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from adapters.sdk.errors import ConfigurationError
from harness.common.v1 import error_pb2

SETTING: Final = "skills"
MAX_SKILLS: Final = 64
MAX_TEXT_CHARACTERS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill of the profile. `blocked`: why no agent may use it; empty: they may."""

    text: str
    blocked: str = ""


def skills_of_profile(settings: Mapping[str, Any]) -> dict[str, Skill]:
    """The profile's skills, by id. Raises ConfigurationError for a setting that is none."""
    given = settings.get(SETTING, {})
    if not isinstance(given, dict) or len(cast("dict[str, Any]", given)) > MAX_SKILLS:
        raise _wrong(SETTING, f"a mapping of at most {MAX_SKILLS} skills")
    made: dict[str, Skill] = {}
    for skill_id, fields in cast("dict[str, Any]", given).items():
        where = f"{SETTING}.{skill_id}"
        skill = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
        text, blocked = skill.get("text"), skill.get("blocked", "")
        if not isinstance(text, str) or not isinstance(blocked, str) or set(skill) - {"text", "blocked"}:
            raise _wrong(where, "a mapping with a `text` and, if nobody may use it, a reason as `blocked`")
        if max(len(text), len(blocked)) > MAX_TEXT_CHARACTERS:
            raise _wrong(where, f"of texts with at most {MAX_TEXT_CHARACTERS} characters")
        made[skill_id] = Skill(text, blocked)
    return made


def issues(wanted: Iterable[str], known: Mapping[str, Skill]) -> list[error_pb2.Issue]:
    """An issue at each skill that an agent names and cannot have."""
    found: list[error_pb2.Issue] = []
    for place, skill_id in enumerate(wanted):
        if error := _unusable(skill_id, known):
            found.append(error_pb2.Issue(path=f"skills[{place}]", code=error.code, message=error.message))
    return found


def skills_of_agent(wanted: Iterable[str], known: Mapping[str, Skill]) -> dict[str, str]:
    """Texts of the agent's skills, by id. Raises ConfigurationError for the first that it cannot have: it never runs without one."""
    made: dict[str, str] = {}
    for skill_id in wanted:
        if error := _unusable(skill_id, known):
            raise error
        made[skill_id] = known[skill_id].text
    return made


def used(asked: object, agents: Mapping[str, str]) -> str:
    """The text of the skill that a step asks for. Raises ConfigurationError for one that the agent does not have."""
    if not isinstance(asked, str) or asked not in agents:
        raise ConfigurationError(
            "The step `skill` names no skill of this agent: list it under the agent's skills.", code="skill_unknown"
        )
    return agents[asked]


def _unusable(skill_id: str, known: Mapping[str, Skill]) -> ConfigurationError | None:
    skill = known.get(skill_id)
    if skill is None:
        return ConfigurationError(
            f"The profile has no skill {skill_id!r}: remove it, or choose a profile that has it.", code="skill_unknown"
        )
    if skill.blocked:
        return ConfigurationError(
            f"The operator blocks the skill {skill_id!r}: remove it, or choose a profile that allows it.",
            code="skill_blocked",
        )
    return None


def _wrong(where: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"The profile's setting {where} must be {expected}.", code="profile_invalid")
