"""The adapter in a process without its SDK: `python -m tests.adapters.claude.without_sdk --listen ADDRESS`."""

from tests.support.absent import hide

if __name__ == "__main__":
    hide("claude-agent-sdk")
    from adapters.claude_agent_sdk.adapter import ClaudeAdapter
    from adapters.sdk.serve import run_adapter_main

    run_adapter_main(ClaudeAdapter, "tests.adapters.claude.without_sdk")
