"""The page of the canonical events, as a client sees them."""

from dataclasses import fields
from typing import Final

from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS
from build_tools.reference_contracts import NOTE, comment, message_table
from harness.event.v1 import payload_pb2
from services.gateway.event_view import TERMINAL_KINDS, WIRE_NAMES

_HEAD: Final = f"""# Events

{NOTE}

Whatever SDK runs an agent, its run is told in this one vocabulary, version 1. REST shows an event as
`{{"run_id", "sequence", "event_type", "data", "created_at"}}`, an SSE frame as `id: <sequence>`, `event: <event_type>`, `data: <json of data>`.

- `sequence` starts at 1 and rises by exactly one, without gap or repetition, in the log and for every subscriber, however often it comes back (I7).
- An event is durable before anybody sees it, and every later replay shows the same bytes (I8).
- `created_at` is the engine's clock and never says anything about order.
- An event inside a subagent is shown as `subagent.event` with `{{"namespace", "event_type", "data"}}`. `subagent.started` and `subagent.completed` stay
  themselves; inside another subagent their `data` has its `namespace`.
- In `data`, what is absent or empty is left out: unknown usage stays unknown. Numbers and booleans that cannot be absent are always there.

## Rules

One state machine, `adapters/sdk/lifecycle`, holds them; it runs at the adapter's edge and again at the log (I19).

1. `run.started` comes first, once, and is the engine's own. Exactly one terminal comes last.
2. A tool call starts before its arguments and its completion, and is completed at most once. What is open at a terminal is completed by the engine
   before it, never as `success`.
3. Namespaces nest and balance; the root is never closed; what is open at a terminal is closed by the engine.
4. After `interrupt.requested` only closing events stand before `run.interrupted`.
5. `run.completed` of a harness with durable state has a committed thread-state head behind it; when the commit's outcome is not known, the run is
   `run.failed` with `thread_durability_uncertain`, and is not run again.
6. A stream that ends without a terminal, and a malformed, oversized or misplaced event, fail the run with category `protocol`; nothing of
   the bad event reaches a subscriber.
7. An empty delta is dropped; one over the limit is split, never cut.
8. Control characters other than tab and newline become U+FFFD.

`provider.metadata` is telemetry: it never enters a log and has no sequence.
"""


def events_page() -> str:
    """The whole page."""
    parts = [_HEAD, "## Vocabulary\n", *_kinds(), "## Bounds\n", _bounds()]
    return "\n".join(parts)


def _kinds() -> list[str]:
    parts: list[str] = []
    for field in payload_pb2.EventPayload.DESCRIPTOR.oneofs_by_name["kind"].fields:
        message = field.message_type
        if message is None:
            raise TypeError(f"{field.full_name} is no message: the vocabulary consists of messages")
        terminal = " (terminal)" if field.name in TERMINAL_KINDS else ""
        parts += [
            f"### {WIRE_NAMES[field.name]}{terminal}\n",
            f"{comment(message.full_name)}\n",
            message_table(message),
        ]
    # Types of fields are explained where the contracts are.
    return [part.replace("](#", "](contracts.md#") for part in parts]


def _bounds() -> str:
    lines = [
        "Defaults of the state machine; the contract's own constraints hold besides.\n",
        "| bound | value |",
        "|---|---|",
    ]
    for field in fields(DEFAULT_LIMITS):
        value = getattr(DEFAULT_LIMITS, field.name)
        kib = field.name.endswith("_bytes")
        lines.append(
            f"| {field.name.removesuffix('_bytes').replace('_', ' ')} | {f'{value // 1024} KiB' if kib else value} |"
        )
    return "\n".join(lines) + "\n"
