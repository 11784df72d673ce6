"""A whole mesh on this machine: which processes it has, how they are started, watched, restarted and stopped.

Knows services and adapters by module name only.
"""
