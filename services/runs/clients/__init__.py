"""The calls the runs service makes: catalog, sessions, adapter hosts and workers, sandboxes, providers of tools."""
