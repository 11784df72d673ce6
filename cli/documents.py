"""Reading what a person wrote: blueprints as YAML or JSON, and plain text; within bounds, with the line of every value (I35)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from cli.errors import CommandError, ExitCode, Problem

MAX_DOCUMENT_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 20_000
STDIN: Final = "-"

_PLAIN: Final = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    text: text.lower() == "true" for text in ("true", "True", "TRUE", "false", "False", "FALSE")
}
# The numbers of YAML's core schema. Everything else is text, so that `no`, `1:30` and `2024-01-01` stay what was written.
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,400}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAP_KEY: Final = re.compile(r'\["([^"\\]*)"\]')


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping somebody wrote. `lines` holds the line of every path, as far as it is known."""

    file: str
    value: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict[str, int])

    def line(self, path: str) -> int:
        """The line of the value at `path`, or of the nearest one around it; 0: not known."""
        path = _MAP_KEY.sub(r".\1", path)
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 0)


def read_document(name: str) -> Document:
    """The mapping in a file, or on standard input for `-`. Raises CommandError that names file and line."""
    data = read_bytes(name, MAX_DOCUMENT_BYTES)
    file = _shown(name)
    text = _utf8(file, data)
    try:
        document = _read_json(file, text) if _is_json(name, text) else _read_yaml(file, text)
    except RecursionError:
        _refuse(file, 0, f"nested more than {MAX_DEPTH} deep: no blueprint is.")
    return document


def read_text(name: str, max_characters: int) -> str:
    """The text of a file, or of standard input for `-`."""
    text = _utf8(_shown(name), read_bytes(name, 4 * max_characters))
    if len(text) > max_characters:
        _refuse(_shown(name), 0, f"longer than {max_characters:,} characters: shorten it.")
    return text


def read_bytes(name: str, max_bytes: int) -> bytes:
    """At most `max_bytes` of a file, or of standard input for `-`."""
    try:
        if name == STDIN:
            data = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        _refuse(_shown(name), 0, f"cannot be read: {reason}.")
    if len(data) > max_bytes:
        _refuse(_shown(name), 0, f"larger than {max_bytes:,} bytes: shorten it.")
    return data


def _shown(name: str) -> str:
    return "standard input" if name == STDIN else name


def _utf8(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(file, line, "not UTF-8 text: save it as UTF-8.")


def _is_json(name: str, text: str) -> bool:
    if name.endswith(".json"):
        return True
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        # YAML's flow style also begins with a brace, and YAML knows the line of what is wrong.
        return False
    return True


def _read_json(file: str, text: str) -> Document:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            _refuse(file, 0, f"the key {twice!r} is given twice: remove one.")
        return value

    def no_number(text: str) -> NoReturn:
        _refuse(file, 0, f"{text} is no JSON: write a number.")

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except json.JSONDecodeError as error:
        _refuse(file, error.lineno, f"not valid JSON: {error.msg}, at column {error.colno}.")
    except ValueError:
        _refuse(file, 0, "a number has more digits than can be read: shorten it.")
    _bound_values(file, value)
    return Document(file, _mapping(file, value))


def _bound_values(file: str, value: Any) -> None:
    level, values = [value], 1
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        values += len(level)
        if values > MAX_VALUES:
            _refuse(file, 0, f"more than {MAX_VALUES:,} values: no blueprint has so many.")
        if not level:
            return
    _refuse(file, 0, f"nested more than {MAX_DEPTH} deep: no blueprint is.")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _read_yaml(file: str, text: str) -> Document:
    try:
        _check_events(file, text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(
            file, mark.line + 1 if mark else 0, f"not valid YAML: {error.problem or error.context or 'unreadable'}."
        )
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 0
        _refuse(file, line, "holds a character that YAML does not allow: remove it.")
    if node is None:
        _refuse(file, 0, "is empty: write a blueprint.")
    lines: dict[str, int] = {}
    return Document(file, _mapping(file, _value(file, node, "", lines)), lines)


def _check_events(file: str, text: str) -> None:
    # Before anything is built: an alias of aliases is a few bytes here and gigabytes as values.
    depth = 0
    for values, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        line: int = event.start_mark.line + 1  # type: ignore[union-attr] - every event of a parsed text has a mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            _refuse(file, line, "anchors and aliases are not allowed: write the value out.")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            _refuse(file, line, f"tags are not allowed: remove {tag!r}.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            _refuse(file, line, f"nested more than {MAX_DEPTH} deep: no blueprint is.")
        if values > MAX_VALUES:
            _refuse(file, line, f"more than {MAX_VALUES:,} values: no blueprint has so many.")


def _value(file: str, node: Any, path: str, lines: dict[str, int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        value: dict[str, Any] = {}
        for key, child in node.value:
            line: int = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                _refuse(file, line, "a key is not text: write a name before the colon.")
            name: str = key.value
            if name in value:
                _refuse(file, line, f"the key {name!r} is given twice: remove one.")
            where = f"{path}.{name}" if path else name
            lines[where] = line
            value[name] = _value(file, child, where, lines)
        return value
    if isinstance(node, yaml.SequenceNode):
        return [_value(file, child, f"{path}[{index}]", lines) for index, child in enumerate(node.value)]
    return _scalar(file, node)


def _scalar(file: str, node: Any) -> Any:
    text: str = node.value
    if node.style is not None:
        return text
    if text in _PLAIN:
        return _PLAIN[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else None
    if _NOT_A_NUMBER.fullmatch(text) or number in (float("inf"), float("-inf")):
        _refuse(
            file,
            node.start_mark.line + 1,
            f"{text[:40]} is no number that can be kept: write a smaller one, or quote it.",
        )
    return text if number is None else number


def _mapping(file: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(file, 1, "is not a mapping: a blueprint begins with keys like `id:` and `name:`.")
    return value


def _refuse(file: str, line: int, message: str) -> NoReturn:
    where = f"{file}, line {line}" if line else file
    problem = Problem("", "unreadable_document", message, file, line)
    raise CommandError(f"{where}: {message}", ExitCode.USAGE, "unreadable_document", problems=(problem,)) from None
