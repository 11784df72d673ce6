"""The `harness` command: starts and watches a mesh on this machine, and speaks to any mesh over REST.

It starts services and adapters by module name and imports none of them.
"""
