"""A run's events as they come: as JSON lines, or for people with the answer on stdout and everything around it on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from cli.errors import ExitCode
from cli.feed import RunEvent
from cli.output import Output
from cli.text import json_line, safe_line, safe_text

MAX_SHOWN: Final = 160
"""Characters of arguments and results in one line."""
MAX_ASKED: Final = 2_000
"""Characters of the arguments of a call that waits: who decides on it has to see them."""
MAX_OPEN_CALLS: Final = 1024

EXIT_CODES: Final = {
    "run.completed": ExitCode.OK,
    "run.failed": ExitCode.FAILED,
    "run.cancelled": ExitCode.CANCELLED,
    "run.interrupted": ExitCode.WAITING,
}


class RunView(Protocol):
    """Shows events, each once and in order."""

    def show(self, event: RunEvent) -> None: ...

    def pause(self) -> None:
        """Ends a line that is open, before something else is said."""
        ...


def run_view(output: Output, rejections: Mapping[str, str] = MappingProxyType({})) -> RunView:
    """The view the command was asked for. `rejections` are reasons by call, where this command gave them: no event repeats them."""
    return JsonView(output) if output.as_json else PeopleView(output, rejections)


class JsonView:
    """One line per event."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, event: RunEvent) -> None:
        self._output.document(
            {
                "run_id": event.run_id,
                "sequence": event.sequence,
                "event_type": event.event_type,
                "data": event.data,
            }
        )

    def pause(self) -> None:
        return


class PeopleView:
    """Text as it comes; reasoning and subagents dimmed; tools, warnings and the end as lines."""

    def __init__(self, output: Output, rejections: Mapping[str, str] = MappingProxyType({})) -> None:
        self._output = output
        self._rejections = rejections
        self._open: tuple[str, ...] = ()
        self._calls: dict[tuple[str, ...], str] = {}
        self._usage: dict[str, Any] = {}

    def show(self, event: RunEvent) -> None:
        self._show(event.event_type, event.data, ())

    def pause(self) -> None:
        if self._open:
            stream = sys.stdout if self._open[0] == "content" else sys.stderr
            stream.write("\n")
            stream.flush()
            self._open = ()

    def _show(self, kind: str, data: dict[str, Any], namespace: tuple[str, ...]) -> None:
        if kind == "subagent.event" and isinstance(data.get("data"), dict):
            inner = tuple(_text(part) for part in _list(data.get("namespace")))
            self._show(_text(data.get("event_type")), data["data"], inner)
        elif kind in ("content.delta", "reasoning.delta"):
            self._delta(kind, data, namespace)
        elif kind == "usage.updated":
            self._usage = data
        else:
            line, style = self._line(kind, data, namespace)
            if line:
                self._say(line, style, namespace)
            for asked in _calls_asked(data) if kind == "interrupt.requested" else ():
                self._say(asked, "magenta", namespace)

    def _delta(self, kind: str, data: dict[str, Any], namespace: tuple[str, ...]) -> None:
        answer = kind == "content.delta" and not namespace
        channel = ("content" if answer else kind, _text(data.get("message_id")), *namespace)
        if channel != self._open:
            self.pause()
            self._open = channel
            if namespace:
                self._styled(f"[{safe_line('/'.join(namespace))}] ")
        text = safe_text(_text(data.get("text")))
        if answer:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            self._styled(text)

    def _styled(self, text: str) -> None:
        from rich.text import Text

        self._output.notes.print(Text(text, "dim"), end="", soft_wrap=True)
        sys.stderr.flush()

    def _say(self, line: str, style: str, namespace: tuple[str, ...] = ()) -> None:
        self.pause()
        prefix = f"[{'/'.join(namespace)}] " if namespace else ""
        self._output.note(safe_line(prefix + line), style)

    def _line(self, kind: str, data: dict[str, Any], namespace: tuple[str, ...]) -> tuple[str, str]:
        if kind == "tool.started":
            return self._tool_started(data, namespace)
        if kind == "tool.completed":
            return self._tool_completed(data, namespace)
        if kind == "subagent.started":
            return f"▸ subagent {_text(data.get('agent_name')) or _text(data.get('agent_id'))}", "cyan"
        if kind == "subagent.completed":
            return f"◂ subagent {_text(data.get('agent_id'))}: {_text(data.get('outcome'))}", "cyan"
        if kind == "warning":
            return f"warning: {_text(data.get('message'))} ({_text(data.get('code'))})", "yellow"
        if kind == "interrupt.requested":
            return _question(data), "magenta"
        return self._end(kind, data)

    def _tool_started(self, data: dict[str, Any], namespace: tuple[str, ...]) -> tuple[str, str]:
        name = _text(data.get("tool_name"))
        if len(self._calls) < MAX_OPEN_CALLS:
            self._calls[(*namespace, _text(data.get("tool_call_id")))] = name
        return f"→ {name} {_short(data.get('arguments'))}", "cyan"

    def _tool_completed(self, data: dict[str, Any], namespace: tuple[str, ...]) -> tuple[str, str]:
        call = _text(data.get("tool_call_id"))
        name, outcome = self._calls.pop((*namespace, call), call), _text(data.get("outcome"))
        if outcome == "success":
            return f"← {name} {_short(data.get('result', data.get('result_ref')))}", "cyan"
        error = data.get("error")
        said = _text(error.get("message")) if isinstance(error, dict) else ""
        if outcome == "rejected":
            said = self._rejections.get(call, "")
        return f"← {name}: {outcome}{f', {said}' if said else ''}", "yellow"

    def _end(self, kind: str, data: dict[str, Any]) -> tuple[str, str]:
        usage = _usage(self._usage)
        if kind == "run.completed":
            return f"completed{usage}", "green"
        if kind == "run.cancelled":
            return f"cancelled: {_text(data.get('reason'))}{usage}", "yellow"
        if kind == "run.interrupted":
            return f"interrupted: waits for a person{usage}", "magenta"
        if kind == "run.failed":
            again = _again(data)
            effects = {"possible": " Effects outside are possible.", "known": " There were effects outside."}
            after = effects.get(_text(data.get("side_effect_status")), "")
            kinds = dict.fromkeys((_text(data.get("code")), _text(data.get("category"))))
            return (
                f"failed: {_text(data.get('message'))} ({', '.join(filter(None, kinds))}){again}{after}{usage}",
                "bold red",
            )
        return "", ""


def _again(failed: dict[str, Any]) -> str:
    """Whether and when the same may succeed."""
    seconds = failed.get("retry_after_seconds")
    if failed.get("retryable") is not True:
        return ""
    return (
        f" It may succeed later, in {seconds} s." if isinstance(seconds, int) and seconds else " It may succeed later."
    )


def _question(data: dict[str, Any]) -> str:
    wanted = [_text(item.get("name")) for item in _list(data.get("fields")) if isinstance(item, dict)]
    prompt = _text(data.get("prompt")) or _text(data.get("interrupt_type"))
    return f"? {prompt} ({', '.join(wanted)})" if wanted else f"? {prompt}"


def _calls_asked(data: dict[str, Any]) -> list[str]:
    """A line for each call that waits, with its arguments."""
    return [
        f"waits: {_text(call.get('tool_name'))} {_short(call.get('arguments'), MAX_ASKED)}"
        for call in _list(data.get("tool_approvals"))
        if isinstance(call, dict)
    ]


def _usage(usage: dict[str, Any]) -> str:
    parts = [
        f"{usage[key]} {word}"
        for key, word in (("input_tokens", "in"), ("cached_input_tokens", "cached"), ("output_tokens", "out"))
        if isinstance(usage.get(key), int)
    ]
    text = f" · {', '.join(parts)} tokens" if parts else ""
    cost = usage.get("cost")
    if not isinstance(cost, int | float):
        return text
    # A sum of floats: what is beyond a millionth is noise, and nobody reads powers of ten.
    return f"{text} · {f'{cost:.6f}'.rstrip('0').rstrip('.')} {_text(usage.get('currency'))}"


def _short(value: Any, most: int = MAX_SHOWN) -> str:
    if value is None or value == {}:
        return ""
    return safe_line(value if isinstance(value, str) else json_line(value), most)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
