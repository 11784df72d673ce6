"""Who runs a tool, behind one port: what is built in is here, a team's own service is called by `services.runs.clients.tool_provider`."""
