"""A stand-in of Amazon Bedrock AgentCore, both planes: a real HTTP server that real boto3 speaks to by `endpoint_url`."""

from tests.standins.agentcore.control_plane import ACCOUNT, REGION, Fault
from tests.standins.agentcore.server import AgentCore, Recorded

__all__ = ["ACCOUNT", "REGION", "AgentCore", "Fault", "Recorded"]
