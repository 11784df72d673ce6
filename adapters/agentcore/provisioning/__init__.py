"""One managed harness for each agent: made, kept as the operator's profile says, and removed when nobody needs it (AgentCore, reconciliation)."""
