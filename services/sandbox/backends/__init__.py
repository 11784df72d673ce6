"""Backends: where sandboxes really come from."""
