"""What a message asks for: plain conversation, a burst, or a script (reference harness)."""

from dataclasses import dataclass
from typing import Any, cast

import orjson

from adapters.sdk.errors import ConfigurationError

MAX_EVENTS = 10_000_000
MAX_SIZE = 64 * 1024
MAX_SECONDS = 86_400.0
MAX_RATE = 1_000_000.0
MAX_STEPS = 10_000
MAX_SCRIPTS = 1_000
MAX_NESTING = 8

Step = dict[str, Any]
Script = list[Step]


@dataclass(frozen=True, slots=True)
class Plain:
    """Anything that is no instruction."""

    text: str


@dataclass(frozen=True, slots=True)
class Burst:
    """`n` deltas of `size` characters, `rate` per second (0: as fast as possible), the first after `delay` seconds."""

    n: int
    rate: float
    yield0: bool
    delay: float
    size: int
    stamp: bool


@dataclass(frozen=True, slots=True)
class Scripted:
    """One script, or one for each turn of the session."""

    scripts: list[Script]
    per_turn: bool


def parse(message: str) -> Plain | Burst | Scripted:
    """What `message` asks for. Raises ConfigurationError for an instruction that is wrong in itself."""
    if not message.lstrip().startswith("{"):
        return Plain(message)
    try:
        document: object = orjson.loads(message)
    except orjson.JSONDecodeError:
        return Plain(message)
    fields = cast("dict[str, Any]", document)
    if "n" in fields:
        return _burst(fields)
    if "script" in fields:
        return Scripted([_script(fields["script"], "script", 0)], per_turn=False)
    if "scripts" in fields:
        scripts = fields["scripts"]
        if not isinstance(scripts, list) or not 0 < len(cast("list[Any]", scripts)) <= MAX_SCRIPTS:
            raise _wrong("scripts", f"a list of 1 to {MAX_SCRIPTS} scripts")
        return Scripted([_script(each, "scripts", 0) for each in cast("list[Any]", scripts)], per_turn=True)
    return Plain(message)


def number(value: object, name: str, least: float, most: float) -> float:
    """`value` if it is a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise _wrong(name, f"a number from {least:g} to {most:g}")
    return value


def _burst(fields: dict[str, Any]) -> Burst:
    return Burst(
        n=_whole(fields["n"], "n", MAX_EVENTS),
        rate=number(fields.get("rate", 0), "rate", 0, MAX_RATE),
        yield0=fields.get("yield0") is True,
        delay=number(fields.get("delay", 0), "delay", 0, MAX_SECONDS),
        size=_whole(fields.get("size", 16), "size", MAX_SIZE),
        stamp=fields.get("stamp") is True,
    )


def _whole(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _wrong(name, f"a whole number from 0 to {most}")
    return value


def _script(value: object, where: str, depth: int) -> Script:
    if depth > MAX_NESTING:
        raise _wrong(where, f"nested at most {MAX_NESTING} deep")
    if not isinstance(value, list) or len(cast("list[Any]", value)) > MAX_STEPS:
        raise _wrong(where, f"a list of at most {MAX_STEPS} steps")
    steps: Script = []
    for step in cast("list[Any]", value):
        if not isinstance(step, dict):
            raise _wrong(where, "made of objects, one a step")
        steps.append(cast("Step", step))
        subagent = steps[-1].get("subagent")
        if isinstance(subagent, dict):
            inner = cast("dict[str, Any]", subagent)
            inner["script"] = _script(inner.get("script", []), "subagent.script", depth + 1)
    return steps


def _wrong(name: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"The message's {name} must be {expected}.", code="message_invalid")
