"""The Claude Agent SDK as a harness: its real program, one for each turn, in an adapter host or in a sandbox.

Entry: `python -m adapters.claude_agent_sdk --listen ADDRESS [--worker]`. May import `adapters.sdk` and the SDK, nothing else of the project.
"""
