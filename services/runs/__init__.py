"""Decides the life of a run: start, execute, cancel, deadline, end, and the order in which its events become durable.

It owns runs, the event log, dispatch, and leases on runs, brokers tools and delegation, and speaks `harness.run.v1`,
`harness.tool.v1` and `harness.delegation.v1`. It reaches bindings, agents and sandboxes only through their services, and
a provider only through the runtime contract.
"""
