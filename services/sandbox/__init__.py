"""Decides which isolated worker belongs to which conversation, and for how long.

It owns leases on sandboxes, warm pools and the backends that make a sandbox, and speaks `harness.sandbox.v1`. What runs
inside is not its concern: it neither calls a model nor reads an event.
"""
