"""The Claude Agent SDK as a harness: its real program, one for each turn, in an adapter host or in a sandbox.

Entry: `python -m adapters.claude_agent_sdk --listen ADDRESS [--worker]`. May import `adapters.sdk` and the SDK, nothing else of the project.
"""

import os

# Before gRPC is imported: what it does around a fork, for programs that go on in Python behind one, crashes a child of this process now and then before it
# becomes the SDK's program. Nothing here goes on behind a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
