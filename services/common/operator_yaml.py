"""Reading the operator file's YAML within bounds: no alias, no tag, no duplicate key, bounded size, depth and number of values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import yaml

from services.common.errors import ConfigurationError

MAX_BYTES: Final = 512 * 1024
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 20_000


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} is given twice", key.start_mark)
            seen.add(name)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def read_yaml(path: Path) -> object:
    """The document as plain values. Errors: `ConfigurationError` that names the file and the line."""
    text = _text(path)
    try:
        _check_events(path, text)
        return cast(object, yaml.load(text, Loader=_Loader))  # noqa: S506 - a SafeLoader with one more check
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigurationError(f"{path}{where}: {error.problem or 'not valid YAML'}.") from None
    except (yaml.YAMLError, ValueError) as error:
        # A character YAML does not know, or a number beyond what Python reads.
        raise ConfigurationError(f"{path}: not valid YAML: {str(error).splitlines()[0]}.") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"HARNESS_CONFIG_FILE: {path} cannot be read: {error.strerror}. It names the operator file (harness.yaml)."
        ) from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path}: larger than {MAX_BYTES} bytes: that is no operator file.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text at byte {error.start}.") from None


def _check_events(path: Path, text: str) -> None:
    # Before anything is built: an alias of aliases is a few bytes here and gigabytes as values.
    depth = 0
    events = cast(Iterator[Any], yaml.parse(text, Loader=yaml.SafeLoader))
    for values, event in enumerate(events):
        line: int = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ConfigurationError(f"{path}, line {line}: anchors and aliases are not allowed: write the value out.")
        if getattr(event, "tag", None):
            raise ConfigurationError(f"{path}, line {line}: tags are not allowed: remove {event.tag!r}.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ConfigurationError(f"{path}, line {line}: nested more than {MAX_DEPTH} deep.")
        if values > MAX_VALUES:
            raise ConfigurationError(f"{path}, line {line}: more than {MAX_VALUES} values.")
