"""The control plane that the kit plays towards a runtime: fences, offsets, heads, and the facades that a runtime may call."""
