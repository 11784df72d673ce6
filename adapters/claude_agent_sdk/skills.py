"""Skills of a blueprint, as folders that the operator's profile gives, and how the program and the model come to know of them.

The program takes skills as parts of a plugin, so each turn has one of our own, with a link to each folder. It would list them, and its subagents, beside
the person's message; messages are delivered word for word, so both lists stand at the end of the system prompt.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters.claude_agent_sdk.profile import Profile, Subagent
from adapters.sdk.errors import ConfigurationError
from harness.runtime.v1 import runtime_pb2

PLUGIN = "harness"
FILE = "SKILL.md"
MAX_DESCRIPTION_CHARACTERS = 1_000
_MAX_HEAD_CHARACTERS = 16_384


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill an agent may use."""

    skill_id: str
    folder: Path
    description: str

    @property
    def name(self) -> str:
        """What the model calls it."""
        return f"{PLUGIN}:{self.skill_id}"


def unknown_skills(wanted: Iterable[str], profile: Profile) -> list[str]:
    """Ids of skills that the profile does not give."""
    return [skill for skill in wanted if skill not in profile.skills]


def skills_of(wanted: Iterable[str], manifests: Iterable[runtime_pb2.SkillManifest], profile: Profile) -> list[Skill]:
    """The skills. Raises ConfigurationError for the first one that the profile does not give, or whose folder holds none."""
    wanted, known = list(wanted), {manifest.skill_id: manifest.description for manifest in manifests}
    for skill in unknown_skills(wanted, profile):
        raise ConfigurationError(f"The profile has no skill {skill!r}.", code="skill_unknown")
    return [_skill(skill, profile.skills, known.get(skill, "")) for skill in wanted]


def plugin(folder: Path, skills: Sequence[Skill]) -> Path:
    """Makes the plugin below a turn's folder."""
    made = folder / "plugin"
    (made / ".claude-plugin").mkdir(parents=True)
    (made / "skills").mkdir()
    manifest = {"name": PLUGIN, "version": "1.0.0", "description": "Skills of this agent."}
    (made / ".claude-plugin" / "plugin.json").write_text(json.dumps(manifest), "utf-8")
    for skill in skills:
        (made / "skills" / skill.skill_id).symlink_to(skill.folder.absolute(), target_is_directory=True)
    return made


def told(skills: Sequence[Skill], subagents: Mapping[str, Subagent]) -> str:
    """What the model has to know of its skills and subagents, to be put behind the system prompt; empty without any."""
    return _listed(skills) + _delegates(subagents)


def _listed(skills: Sequence[Skill]) -> str:
    if not skills:
        return ""
    lines = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)
    return f"\n\n<skills>\nSkills you have; call the tool Skill with a name before you do what it is for.\n{lines}\n</skills>"


def _delegates(subagents: Mapping[str, Subagent]) -> str:
    if not subagents:
        return ""
    lines = "\n".join(f"- {name}: {one.description}" for name, one in subagents.items())
    return f"\n\n<subagents>\nSubagents you may give work to, with the tool Agent and a name as subagent_type.\n{lines}\n</subagents>"


def _skill(skill_id: str, folders: Mapping[str, Path], told: str) -> Skill:
    folder = folders[skill_id]
    try:
        with (folder / FILE).open(encoding="utf-8", errors="replace") as file:
            head = file.read(_MAX_HEAD_CHARACTERS)
    except OSError as error:
        # I18: which folder is the operator's; its key is enough to find it.
        raise ConfigurationError(
            f"The profile's setting skills.{skill_id}: {FILE} cannot be read: {error.strerror}.", code="skill_missing"
        ) from None
    return Skill(skill_id, folder, (told or _description(head))[:MAX_DESCRIPTION_CHARACTERS])


def _description(head: str) -> str:
    """The description in a skill's front matter; empty if it gives none in one line."""
    lines = head.splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key.strip() == "description":
            return value.strip().strip("\"'")
    return ""
