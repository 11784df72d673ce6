"""Amazon Bedrock AgentCore as a harness: managed harnesses and custom runtimes, run by the provider.

Entry: `python -m adapters.agentcore --listen ADDRESS`. May import `adapters.sdk` and the AWS SDK, nothing else of the project.
"""
