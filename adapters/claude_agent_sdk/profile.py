"""What an operator's profile says of this harness: its settings, checked, each problem with the name of its key (I32)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from adapters.sdk.profile_settings import (
    Reader,
    flag,
    list_of,
    mapping_of,
    number,
    one_of,
    path,
    read_settings,
    text,
    url,
    whole,
    wrong,
)
from adapters.sdk.rehearsal import ALLOW_FAULTS

PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk")
CREDENTIAL_KINDS = ("api_key", "auth_token")
MAX_PROMPT_CHARACTERS = 100_000
_TEXTS = list_of(text)


@dataclass(frozen=True, slots=True)
class Subagent:
    """A subagent the operator defined: what it is for, its prompt, the built-in and portable tools it may use (None: all of them), its model."""

    description: str
    prompt: str = field(repr=False)
    tools: tuple[str, ...] | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile. Nothing of it is for clients."""

    # The provider's model id where the blueprint leaves the choice to the operator; empty: the program's own default.
    model: str = ""
    # Model ids by the aliases an author may pick.
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    # Folder below which each runtime has a folder of its own; None: the system's folder for temporary files.
    workspace_root: Path | None = None
    permission_mode: str = "default"
    # Built-in tools of the program that exist for the model at all.
    builtin_tools: tuple[str, ...] = ()
    # Permission rules for them, as `Bash(git log:*)`: calls that need no permission.
    allowed_tools: tuple[str, ...] = ()
    # At most one of the two; neither: the credential of the adapter's own process.
    credential_file: Path | None = field(default=None, repr=False)
    credential_env: str = ""
    # How the credential is sent: as an API key, or as a bearer token, as gateways want it.
    credential_kind: str = "api_key"
    base_url: str = field(default="", repr=False)
    # The most an author may ask for with `max_turns`; 0: no bound but the run's time.
    max_turns: int = 0
    # US dollars that one run may cost by the program's own reckoning; 0: no bound.
    max_budget_usd: float = 0.0
    # How often the program asks again what the provider refused for a moment (429, 5xx).
    max_retries: int = 2
    # Seconds without a byte of an answer after which its stream counts as broken.
    idle_seconds: int = 120
    # For certification: a message may be a rehearsal (adapters.sdk.rehearsal).
    allow_faults: bool = False
    # Folders of skills by the ids a blueprint names.
    skills: Mapping[str, Path] = field(default_factory=dict[str, Path], repr=False)
    # Subagents by the names a model calls them with.
    subagents: Mapping[str, Subagent] = field(default_factory=dict[str, Subagent], repr=False)


def read_profile(settings: Mapping[str, Any]) -> Profile:
    """The profile of these settings. Raises ConfigurationError that names the first key that is wrong. Looks at no file."""
    profile = Profile(**read_settings(settings, _READERS))
    if profile.credential_file is not None and profile.credential_env:
        raise wrong("credential_env", "may not be given beside credential_file: keep one of the two")
    return profile


def _subagent(key: str, value: object) -> Subagent:
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    unknown = [name for name in given if name not in ("description", "prompt", "tools", "model")]
    if not isinstance(value, dict) or unknown:
        raise wrong(key, "must have description, prompt and, if wanted, tools and model, and nothing else")
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not 0 < len(prompt) <= MAX_PROMPT_CHARACTERS:
        raise wrong(f"{key}.prompt", f"must be a text of 1 to {MAX_PROMPT_CHARACTERS} characters")
    return Subagent(
        text(f"{key}.description", given.get("description")),
        prompt,
        _TEXTS(f"{key}.tools", given["tools"]) if "tools" in given else None,
        text(f"{key}.model", given["model"]) if "model" in given else "",
    )


_READERS: Mapping[str, Reader[Any]] = {
    "model": text,
    "models": mapping_of(text),
    "workspace_root": path,
    "permission_mode": one_of(*PERMISSION_MODES),
    "builtin_tools": _TEXTS,
    "allowed_tools": _TEXTS,
    "credential_file": path,
    "credential_env": text,
    "credential_kind": one_of(*CREDENTIAL_KINDS),
    "base_url": url,
    "max_turns": whole(0, 10_000),
    "max_budget_usd": number(0, 10_000),
    "max_retries": whole(0, 10),
    "idle_seconds": whole(1, 3_600),
    ALLOW_FAULTS: flag,
    "skills": mapping_of(path),
    "subagents": mapping_of(_subagent),
}
