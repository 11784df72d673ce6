"""`python -m adapters.claude_agent_sdk --listen ADDRESS [--worker]`."""

import sys
from functools import partial

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from adapters.sdk.serve import run_adapter_main

if __name__ == "__main__":
    run_adapter_main(partial(ClaudeAdapter, sandboxed="--worker" in sys.argv), "adapters.claude_agent_sdk")
