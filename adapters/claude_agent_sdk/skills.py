"""Skills of a blueprint, as folders that the operator's profile gives."""

from collections.abc import Iterable
from pathlib import Path

from adapters.claude_agent_sdk.profile import Profile
from adapters.sdk.errors import ConfigurationError


def unknown_skills(wanted: Iterable[str], profile: Profile) -> list[str]:
    """Ids of skills that the profile does not give."""
    return [skill for skill in wanted if skill not in profile.skills]


def folders_of(wanted: Iterable[str], profile: Profile) -> list[Path]:
    """The folders of the skills. Raises ConfigurationError that names the first one the profile does not give."""
    wanted = list(wanted)
    for skill in unknown_skills(wanted, profile):
        raise ConfigurationError(f"The profile has no skill {skill!r}.", code="skill_unknown")
    return [profile.skills[skill] for skill in wanted]
