"""What a message asks for (reference harness): plain conversation, a burst, or a script."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from adapters.betterproto.errors import wrong

FAULTS = frozenset({"emit", "raise", "exit", "hang", "spin"})
STEPS = FAULTS | {
    *("text", "reasoning", "tool", "tool_result", "interrupt", "decision"),
    *("usage", "warning", "metadata", "state", "sleep", "fail"),
}
# Known to the message language, not to this harness.
ABSENT = frozenset({"subagent", "memory", "probe"})
MAX_STEPS = 10_000
MAX_SCRIPTS = 1_000
_WORDS = re.compile(r"\s*\S+\s*|\s+")
Step = dict[str, Any]
Script = list[Step]


@dataclass(frozen=True)
class Burst:
    """`n` deltas of `size` characters, `rate` per second (0: as fast as possible), the first after `delay` seconds."""

    n: int
    rate: float
    yield0: bool
    delay: float
    size: int
    stamp: bool


@dataclass(frozen=True)
class Scripted:
    """One script, or with `per_turn` one for each turn of the session."""

    scripts: list[Script]
    per_turn: bool


def parse(message: str) -> str | Burst | Scripted:
    """What is asked for; plain text as it is. Raises Failure for an instruction that is wrong in itself."""
    try:
        said: object = json.loads(message) if message.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return message
    document = cast("dict[str, Any]", said)
    if "n" in document:
        return Burst(
            n=int(number(document, "n", 10_000_000, whole=True)),
            rate=number(document, "rate", 1_000_000),
            yield0=document.get("yield0") is True,
            delay=number(document, "delay", 86_400),
            size=int(number(document, "size", 64 * 1024, default=16, whole=True)),
            stamp=document.get("stamp") is True,
        )
    if "script" in document:
        return Scripted([_script(document["script"])], per_turn=False)
    if "scripts" in document:
        scripts = document["scripts"]
        if not isinstance(scripts, list) or not 0 < len(cast("list[Any]", scripts)) <= MAX_SCRIPTS:
            raise wrong("message_invalid", f"The message's scripts must be a list of 1 to {MAX_SCRIPTS} scripts.")
        return Scripted([_script(script) for script in cast("list[Any]", scripts)], per_turn=True)
    return message


def number(document: dict[str, Any], name: str, most: float, *, default: float = 0, whole: bool = False) -> float:
    """The number from 0 to `most` under `name`."""
    value: object = document.get(name, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= most:
        kind = "whole number" if whole else "number"
        raise wrong("message_invalid", f"The message's {name} must be a {kind} from 0 to {most:g}.")
    return value


def name_of(step: Step, *, faults: bool) -> str:
    """Which step it is. Raises Failure for one that is unknown, not there, or a fault where faults are not allowed."""
    names = [name for name in step if name in STEPS or name in ABSENT]
    if len(names) != 1:
        raise wrong("step_unknown", f"A step must have exactly one of: {', '.join(sorted(STEPS))}.")
    if names[0] in ABSENT:
        raise wrong(f"{names[0]}_unavailable", f"This harness does not have the step `{names[0]}`.")
    if names[0] in FAULTS and not faults:
        message = f"The step `{names[0]}` is a fault, and the operator's profile does not allow faults."
        raise wrong("faults_not_allowed", message)
    return names[0]


def words(text: str) -> list[str]:
    """`text` cut before each word but the first; joined it is `text` again."""
    return _WORDS.findall(text)


def _script(value: object) -> Script:
    steps = cast("list[Any]", value)
    if not isinstance(value, list) or len(steps) > MAX_STEPS or not all(isinstance(step, dict) for step in steps):
        raise wrong("message_invalid", f"The message's script must be a list of at most {MAX_STEPS} objects.")
    return steps
