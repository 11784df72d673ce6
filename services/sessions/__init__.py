"""Decides what a conversation is bound to and who may act in it now.

It owns bindings, epochs, version pins, the slot of the one active run and its waiting list, references to a provider's
native session, pending interrupts, thread state (heads and parts) and memory. It speaks `harness.session.v1`,
`harness.state.v1` and `harness.memory.v1`, and starts nothing itself.
"""
