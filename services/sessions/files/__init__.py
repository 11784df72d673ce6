"""Files that subjects upload for agents to read: kept in parts, named by runs, gone when their time is over (worker protocol, facades)."""
