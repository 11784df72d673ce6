"""What the SDK is started with for one turn: the operator's and the author's wishes as its options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, HookMatcher

from adapters.claude_agent_sdk.environment import environment
from adapters.claude_agent_sdk.home import Home, TurnFolder
from adapters.claude_agent_sdk.options import AgentOptions, turns_of
from adapters.claude_agent_sdk.profile import Profile
from adapters.claude_agent_sdk.skills import Skill, plugin
from adapters.claude_agent_sdk.tools import SERVER, TurnTools
from adapters.claude_agent_sdk.transcript import TurnStore
from adapters.sdk.logs import get_logger

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""One message of the program, a tool's result or a document in it included."""
AGENT_TOOL = "Agent"
SKILL_TOOL = "Skill"
_log = get_logger(__name__)


def sdk_options(
    *,
    profile: Profile,
    agent: AgentOptions,
    model: str,
    home: Home,
    folder: TurnFolder,
    program: Path,
    access: Mapping[str, str],
    tools: TurnTools,
    store: TurnStore,
    resume: str,
    skills: Sequence[Skill],
    hook_seconds: float,
    sandboxed: bool,
) -> ClaudeAgentOptions:
    """The options. Nothing comes from settings on the machine: what is not said here is off."""
    builtin = list(profile.builtin_tools)
    if profile.subagents and AGENT_TOOL not in builtin:
        builtin.append(AGENT_TOOL)
    if skills and SKILL_TOOL not in builtin:
        builtin.append(SKILL_TOOL)
    extra: dict[str, str | None] = {"system-prompt-file": str(folder.prompt)}
    options = ClaudeAgentOptions(
        # By file: an argument is bounded and seen by others. Not recorded in the conversation: each turn has a prompt of its own.
        system_prompt={"type": "preset", "preset": "claude_code", "snapshot": False},
        extra_args=extra,
        tools=builtin,
        allowed_tools=list(profile.allowed_tools),
        setting_sources=[],
        strict_mcp_config=True,
        mcp_servers={SERVER: tools.server()} if tools.names else {},
        permission_mode=cast("Any", profile.permission_mode),
        verbatim_prompts=True,
        include_partial_messages=True,
        forward_subagent_text=True,
        session_store=cast("Any", store),
        resume=resume or None,
        model=model or None,
        max_turns=turns_of(agent, profile) or None,
        max_budget_usd=profile.max_budget_usd or None,
        cwd=home.workspace,
        cli_path=home.launcher,
        env=environment(folder, profile, access, str(program), sandboxed=sandboxed),
        hooks={"PreToolUse": [HookMatcher(hooks=[cast("Any", tools.decide)], timeout=hook_seconds)]},
        agents={name: _subagent(name, profile) for name in profile.subagents} or None,
        plugins=[{"type": "local", "path": str(plugin(folder.folder, skills))}] if skills else [],
        skills=[skill.name for skill in skills],
        max_buffer_size=MAX_MESSAGE_BYTES,
        stderr=_heard,
    )
    if agent.thinking == "enabled":
        options.thinking = {"type": "enabled", "budget_tokens": agent.budget_tokens}
    elif agent.thinking == "adaptive":
        # In full, or there is no reasoning to be shown.
        options.thinking = {"type": "adaptive", "display": "summarized"}
    elif agent.thinking == "disabled":
        options.thinking = {"type": "disabled"}
    if agent.effort != "provider":
        options.effort = cast("Any", agent.effort)
    return options


def _subagent(name: str, profile: Profile) -> AgentDefinition:
    given = profile.subagents[name]
    return AgentDefinition(
        description=given.description,
        prompt=given.prompt,
        tools=None if given.tools is None else list(given.tools),
        model=given.model or "inherit",
    )


def _heard(line: str) -> None:
    # I22: what the program writes there may quote anything; that it wrote is worth a look for who debugs it.
    _log.debug("program_stderr", characters=len(line))
