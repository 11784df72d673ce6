"""The tool broker: who may call a portable tool, and what a call leaves behind (run protocol, Tools; I10–I12, I24, I25).

A call goes one way: token and fence, the agent's grant, the arguments, the approval policy, acceptance by compare-and-set on the run, the unique
record of the call, the provider, the outcome on the record. Nothing is invoked before the record is there, and nothing is told that is not on it.
"""
