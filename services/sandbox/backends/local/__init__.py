"""Sandboxes on this machine: a keeper process for each, bubblewrap around the worker (docs/explanation/sandbox-isolation.md)."""
