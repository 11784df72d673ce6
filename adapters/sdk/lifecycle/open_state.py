"""What is open in a run at some point of its log: small, JSON-safe, and enough to go on from there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

MessageKind = Literal["content", "reasoning"]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message whose deltas may go on. There is at most one in each open namespace."""

    kind: MessageKind
    message_id: str
    namespace: Path = ()


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that has started and not completed."""

    tool_call_id: str
    namespace: Path = ()
    # Fragments of its arguments so far; None if the arguments came at once.
    arguments: str | None = ""


@dataclass(frozen=True, slots=True)
class OpenNamespace:
    """A subagent that has started and not completed."""

    path: Path
    parent_tool_call_id: str


@dataclass(frozen=True, slots=True)
class OpenState:
    """The whole state of a run's lifecycle, in the order in which things were opened.

    `used_calls` holds digests of the ids of ended
    calls, `interrupt_id` the requested interrupt, `ended` whether a terminal was accepted.
    """

    messages: tuple[OpenMessage, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    namespaces: tuple[OpenNamespace, ...] = ()
    used_calls: tuple[str, ...] = ()
    interrupt_id: str = ""
    ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe form for a segment's header; `from_dict` gives an equal state back."""
        return {
            "messages": [[m.kind, m.message_id, list(m.namespace)] for m in self.messages],
            "calls": [[c.tool_call_id, list(c.namespace), c.arguments] for c in self.calls],
            "namespaces": [[list(n.path), n.parent_tool_call_id] for n in self.namespaces],
            "used_calls": "".join(self.used_calls),
            "interrupt_id": self.interrupt_id,
            "ended": self.ended,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "OpenState":
        """The state that `to_dict` wrote. Unknown keys are ignored, missing ones empty."""
        used = cast("str", document.get("used_calls", ""))
        return cls(
            messages=tuple(OpenMessage(k, i, tuple(ns)) for k, i, ns in document.get("messages", ())),
            calls=tuple(OpenCall(i, tuple(ns), arguments) for i, ns, arguments in document.get("calls", ())),
            namespaces=tuple(OpenNamespace(tuple(path), call) for path, call in document.get("namespaces", ())),
            used_calls=tuple(used[at : at + DIGEST_CHARS] for at in range(0, len(used), DIGEST_CHARS)),
            interrupt_id=document.get("interrupt_id", ""),
            ended=document.get("ended", False),
        )


# Hex characters of one digest in `used_calls`.
DIGEST_CHARS = 16
