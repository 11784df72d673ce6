"""The adapter in a process that has no boto3: `python -m tests.adapters.agentcore.without_sdk --listen ADDRESS`."""

from tests.support.absent import hide

if __name__ == "__main__":
    hide("boto3", "botocore")
    from adapters.agentcore.adapter import AgentCoreAdapter
    from adapters.sdk.serve import run_adapter_main

    run_adapter_main(AgentCoreAdapter, "tests.adapters.agentcore.without_sdk")
