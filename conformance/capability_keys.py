"""The capability keys of contract version 1, and the section that looks at each (contract, Capabilities)."""

SECTIONS: dict[int, str] = {
    1: "Initialise and clean up",
    2: "Text, reasoning, usage, order",
    3: "Tools",
    4: "MCP and caller credentials",
    5: "Sessions, state and takeover",
    6: "Interrupts and resume",
    7: "Cancel",
    8: "Files and limits",
    9: "Skills and memory",
    10: "Subagents",
    11: "Faults",
    12: "Observability and leaks",
}

CAPABILITY_SECTIONS: dict[str, int] = {
    "stream.text": 2,
    "stream.reasoning": 2,
    "stream.usage": 2,
    "invoke.non_streaming": 2,
    "session.multi_turn": 5,
    "session.cross_replica_resume": 5,
    "session.clear": 5,
    "thread.durable_commit": 5,
    "thread.eviction_restore": 5,
    "interrupt.form_input": 6,
    "interrupt.tool_approval": 6,
    "interrupt.multi_tool": 6,
    "tool.mcp": 4,
    "tool.builtin": 3,
    "tool.caller_credentials": 4,
    "tool.partial_availability": 4,
    "tool.cancellation": 7,
    "input.images": 8,
    "input.documents": 8,
    "skills": 9,
    "subagents": 10,
    "subagents.mixed_harness": 10,
    "middleware.portable": 3,
    "memory.semantic": 9,
    "memory.episodic_reference": 9,
    "memory.procedural": 9,
    "memory.user_scope": 9,
    "memory.shared_policy": 9,
    "observability.metrics": 12,
    "observability.tracing": 12,
    "observability.trace_propagation": 12,
    "observability.redaction": 12,
    "runtime.cancel": 7,
    "runtime.restart": 5,
    "runtime.bounded_cleanup": 1,
    "runtime.sandbox_isolation": 12,
    "runtime.lease_fencing": 5,
    "runtime.eviction_recovery": 5,
}

CAPABILITY_KEYS = tuple(CAPABILITY_SECTIONS)

# Keys that no rule looks at, and why: what the report says of a claim.
_NO_MEMORY = "The control plane of this kit serves no memory, so nobody can see what is read of it or written to it."
_OWN_MACHINE = "It does not cross the wire: the adapter's own tests have to show it."
NOT_LOOKED_AT: dict[str, str] = {
    "invoke.non_streaming": "The contract has one way to run a turn, which streams; there is nothing else to look at.",
    "tool.mcp": "Servers of MCP stand behind the tool broker, and the kit's broker has none; what a tool is made of is not seen by an adapter.",
    "tool.caller_credentials": "Credentials of the caller stay with the tool broker, and the kit's broker asks for none.",
    "subagents.mixed_harness": "Other agents are reached through delegation, which the control plane of this kit does not serve.",
    "middleware.portable": "The contract has no portable middleware yet, so there is nothing to give to an adapter.",
    "memory.semantic": _NO_MEMORY,
    "memory.episodic_reference": _NO_MEMORY,
    "memory.procedural": _NO_MEMORY,
    "memory.user_scope": _NO_MEMORY,
    "memory.shared_policy": _NO_MEMORY,
    "observability.metrics": _OWN_MACHINE,
    "observability.tracing": _OWN_MACHINE,
    "observability.redaction": _OWN_MACHINE,
    "runtime.sandbox_isolation": "A sandbox shows it, not the worker inside: the sandbox backend's own tests look at it.",
}
