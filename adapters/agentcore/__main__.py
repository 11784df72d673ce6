"""`python -m adapters.agentcore --listen ADDRESS`."""

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.serve import run_adapter_main

if __name__ == "__main__":
    run_adapter_main(AgentCoreAdapter, "adapters.agentcore")
