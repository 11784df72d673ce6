"""The environment of the program: made from nothing, so that nothing of this process is in it."""

import os
from collections.abc import Mapping

from adapters.claude_agent_sdk import launcher
from adapters.claude_agent_sdk.home import TurnFolder
from adapters.claude_agent_sdk.profile import Profile

# Variables the SDK sets itself and the program needs; what they hold is the SDK's.
_OF_THE_SDK = ("CLAUDE_AGENT_SDK_VERSION", "CLAUDE_CODE_SDK_READS_SESSION_STATE", "PWD")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LATER_SECONDS = 60
_TOOL_MILLISECONDS = 24 * 3600 * 1000
_SWITCHES: Mapping[str, str] = {
    # No telemetry, no updates, no look for models or notes: the program talks to the model alone.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
    # What a turn is told beyond the prompt is the control plane's to say.
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    # Nothing goes on behind a turn's end.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # I11: a stream that broke after output is never asked for again in another form, nor from another model.
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_NO_MODEL_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK": "1",
    "CLAUDE_ENABLE_BYTE_WATCHDOG": "1",
    # How long a tool takes is for the broker and the run's deadline to bound.
    "MCP_TOOL_TIMEOUT": str(_TOOL_MILLISECONDS),
    "CLAUDE_CODE_SDK_MCP_TOOL_IDLE_TIMEOUT": str(_TOOL_MILLISECONDS),
}


def environment(
    folder: TurnFolder, profile: Profile, access: Mapping[str, str], program: str, *, sandboxed: bool
) -> dict[str, str]:
    """What the SDK is to set: the program's variables, and what the launcher needs to leave out all others. `access`: how it reaches its model."""
    idle = str(profile.idle_seconds * 1000)
    # The program asks again for an answer that stops: the reader, who does not, has to notice first.
    later = str((profile.idle_seconds + _LATER_SECONDS) * 1000)
    variables = {
        **_SWITCHES,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "HOME": str(folder.home),
        "TMPDIR": str(folder.temporary),
        "CLAUDE_CONFIG_DIR": str(folder.config),
        "CLAUDE_CODE_MAX_RETRIES": str(profile.max_retries),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": later,
        "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": later,
        "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": later,
        "API_TIMEOUT_MS": idle,
        **access,
    }
    if sandboxed:
        # Without it the program refuses to be the root user with all permissions, as in a sandbox it may be.
        variables["IS_SANDBOX"] = "1"
    return {
        **variables,
        launcher.NAMES: ",".join((*variables, *_OF_THE_SDK)),
        launcher.PROGRAM: program,
        launcher.PID_FILE: str(folder.pid_file),
        launcher.PARENT: str(os.getpid()),
    }
