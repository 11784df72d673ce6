"""What an invocation of a managed harness says beside its messages. All that a version says is in it, so a pinned conversation keeps its version (I4)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.agentcore.answers import MAX_DESCRIPTION_CHARACTERS
from adapters.agentcore.options import AgentOptions
from adapters.agentcore.profile import PER_AGENT, Profile
from adapters.sdk.contract import Turn
from adapters.sdk.errors import InternalError
from adapters.sdk.forms import ASK, DESCRIPTION, SCHEMA

MAX_TIMEOUT_SECONDS = 86_400
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{32,99}")


def checked_session(session_id: str) -> str:
    """The session's name, if the service takes it: its SDK looks at the length alone."""
    if not _SESSION.fullmatch(session_id):
        raise InternalError("The session's name is none that the provider takes.", code="session_name_invalid")
    return session_id


def overrides(turn: Turn, profile: Profile, options: AgentOptions, model: str) -> dict[str, Any]:
    """Parameters of InvokeHarness that replace the harness's own."""
    asked: dict[str, Any] = {"timeoutSeconds": _seconds(turn)}
    of_this_agent = profile.mode == PER_AGENT
    if turn.system_prompt or of_this_agent:
        asked["systemPrompt"] = [{"text": turn.system_prompt}] if turn.system_prompt else []
    if model:
        asked["model"] = {"bedrockModelConfig": {"modelId": model}}
    tools = [*_functions(turn, options), *(dict(tool) for tool in profile.provider_tools)]
    if tools or of_this_agent:
        asked["tools"] = tools
        named = [tool["name"] for tool in tools if "name" in tool]
        asked["allowedTools"] = [*named, *profile.allowed_tools]
    if options.max_iterations:
        asked["maxIterations"] = options.max_iterations
    if options.max_tokens:
        asked["maxTokens"] = options.max_tokens
    if profile.qualifier:
        asked["qualifier"] = profile.qualifier
    if turn.user_id:
        asked["actorId"] = turn.user_id
    if turn.traceparent:
        asked["traceParent"] = turn.traceparent
    return asked


def own_names(turn: Turn, options: AgentOptions) -> frozenset[str]:
    """Names of the functions that the agent brings."""
    return frozenset(function["name"] for function in _functions(turn, options))


def said(*blocks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of an invocation: one, of these blocks."""
    return [{"role": "user", "content": [dict(block) for block in blocks]}]


def _functions(turn: Turn, options: AgentOptions) -> Sequence[dict[str, Any]]:
    functions = [
        _function(tool.provider_name, tool.description, {"type": "object", **tool.input_schema}) for tool in turn.tools
    ]
    if options.ask_person:
        functions.append(_function(ASK, DESCRIPTION, SCHEMA))
    return functions


def _function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    described = description[:MAX_DESCRIPTION_CHARACTERS] or name
    config = {"inlineFunction": {"description": described, "inputSchema": dict(schema)}}
    return {"type": "inline_function", "name": name, "config": config}


def _seconds(turn: Turn) -> int:
    return max(1, int(turn.deadline.remaining(MAX_TIMEOUT_SECONDS)))
