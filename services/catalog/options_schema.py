"""The bounded JSON Schema of a harness's options: what a schema may hold, and what options it admits (architecture, "Security").

Draft 2020-12 with a closed list of keywords, references within the document only, a bound on the size after all references
are followed, and patterns that cannot run away: a schema comes from an adapter and is run on what a client sends.
"""

# pyright: standard
# jsonschema's validators are made at run time and carry few types.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import jsonschema
import jsonschema.exceptions

from services.catalog.canonical import canonical_json
from services.catalog.disclosure import Finding, credential_problem, findings, key_problem, text_problem
from services.common.errors import FieldIssue
from services.common.json_schema import bounded_validator

MAX_DEPTH: Final = 8
"""How deep schemas may be nested in each other."""
MAX_EXPANDED: Final = 2_048
"""Schemas after every reference is followed; bounds the work of one validation."""
MAX_PATTERN_CHARACTERS: Final = 256
MAX_MATCHED_CHARACTERS: Final = 256
"""The longest option value a `pattern` is applied to; a longer one does not match."""
MAX_BRANCHES: Final = 4
"""Of one pattern: each may double the work."""
MAX_ISSUES: Final = 100
_VALIDATOR: Final = bounded_validator(MAX_MATCHED_CHARACTERS)

_ONE: Final = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "$defs", "dependentSchemas")
_DATA: Final = ("enum", "const", "default", "examples")
_TEXT: Final = ("title", "description", "$comment")
_OTHER: Final = (
    "$schema", "$ref", "type", "required", "dependentRequired", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties",
    "maxProperties", "deprecated", "readOnly",
)  # fmt: skip
_KEYWORDS: Final = frozenset((*_ONE, *_MANY, *_NAMED, *_DATA, *_TEXT, *_OTHER))
_DIALECT: Final = re.compile(r"https?://json-schema\.org/draft/2020-12/schema#?")
_REFERENCE: Final = re.compile(r"#/\$defs/([A-Za-z0-9_.-]{1,64})")
_FORMAT: Final = re.compile(r"[a-z][a-z-]{0,31}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_CLOSED: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

Schema = Mapping[str, Any]


class SchemaRefused(ValueError):
    """A schema that is not admitted: where, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class OptionsSchema:
    """An admitted schema. Immutable; the same options always get the same answer."""

    def __init__(self, schema: Schema) -> None:
        """Errors: `SchemaRefused`."""
        self._schema = admitted(schema, "options_schema", shown=True)
        self._validator = _VALIDATOR(self._schema)

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the schema's defaults written out (I17): at the root, and in every object that is given."""
        return _with_defaults(self._schema, self._schema, options)

    def issues(self, options: Mapping[str, Any], path: str) -> list[FieldIssue]:
        """Every problem of the options, at most 100; `path` is where they are in the document."""
        errors = islice(self._validator.iter_errors(dict(options)), MAX_ISSUES)
        return [issue for error in errors for issue in _issues_of(error, path)][:MAX_ISSUES]


def admitted(schema: Schema, name: str, *, shown: bool) -> Schema:
    """The schema, its objects closed to unknown keys. `name` is what it is called in errors, `shown` whether clients see it (I18).

    Errors: `SchemaRefused`.
    """
    _Walk(schema, name, shown=shown).check()
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.exceptions.SchemaError as error:
        raise SchemaRefused(_json_path(name, error.absolute_path), "is no valid JSON Schema") from None
    return _closed(schema) if schema else _CLOSED


class _Visit(NamedTuple):
    path: str
    depth: int
    within: tuple[str, ...]


class _Walk:
    """One look at every part of a schema, following references, within bounds."""

    def __init__(self, schema: Schema, name: str, *, shown: bool) -> None:
        self._root = schema
        self._named = name
        self._shown = shown
        self._left = MAX_EXPANDED

    def check(self) -> None:
        if "$ref" in self._root or self._root.get("type", "object") != "object":
            raise SchemaRefused(self._named, "the root must be of type object and no reference")
        self._schema(self._root, _Visit(self._named, 1, ()))

    def _schema(self, schema: object, at: _Visit) -> None:
        self._left -= 1
        if self._left < 0:
            raise SchemaRefused(self._named, f"has more than {MAX_EXPANDED} schemas once references are followed")
        if at.depth > MAX_DEPTH:
            raise SchemaRefused(at.path, f"is nested more than {MAX_DEPTH} deep")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise SchemaRefused(at.path, "must be a schema")
        self._keywords(schema, at.path)
        for keyword in _ONE:
            if keyword in schema:
                self._schema(schema[keyword], _Visit(f"{at.path}.{keyword}", at.depth + 1, at.within))
        for keyword in _MANY:
            for number, child in enumerate(_list(schema, keyword, at.path)):
                self._schema(child, _Visit(f"{at.path}.{keyword}[{number}]", at.depth + 1, at.within))
        for keyword in _NAMED:
            for name, child in _mapping(schema, keyword, at.path).items():
                self._name(name, f"{at.path}.{keyword}")
                self._schema(child, _Visit(f"{at.path}.{keyword}.{name}", at.depth + 1, at.within))
        if "$ref" in schema:
            self._follow(schema["$ref"], at)

    def _follow(self, reference: object, at: _Visit) -> None:
        match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if match is None:
            raise SchemaRefused(f"{at.path}.$ref", "a reference must be #/$defs/<name>")
        name = match[1]
        definitions = _mapping(self._root, "$defs", self._named)
        if name not in definitions:
            raise SchemaRefused(f"{at.path}.$ref", "refers to nothing")
        if name in at.within:
            raise SchemaRefused(f"{at.path}.$ref", "refers to itself")
        self._schema(definitions[name], _Visit(f"{at.path}.$ref", at.depth + 1, (*at.within, name)))

    def _keywords(self, schema: Schema, path: str) -> None:
        for number, keyword in enumerate(schema):
            if keyword not in _KEYWORDS:
                raise SchemaRefused(f"{path}[key {number}]", "is no keyword that these schemas may use")
        for keyword in _TEXT:
            self._refuse(self._text_problem(str(schema.get(keyword, ""))), f"{path}.{keyword}")
        for keyword in _DATA:
            self._data(schema.get(keyword), f"{path}.{keyword}")
        if not _DIALECT.fullmatch(str(schema.get("$schema", "https://json-schema.org/draft/2020-12/schema"))):
            raise SchemaRefused(f"{path}.$schema", "must be JSON Schema draft 2020-12")
        if "$defs" in schema and schema is not self._root:
            raise SchemaRefused(f"{path}.$defs", "definitions belong at the root")
        for name in (*_list(schema, "required", path), *_list(schema, "type", path, or_text=True)):
            self._refuse(self._text_problem(str(name)), f"{path}.required")
        for name, needed in _mapping(schema, "dependentRequired", path).items():
            self._name(name, f"{path}.dependentRequired")
            for other in needed if isinstance(needed, list) else ():
                self._refuse(self._text_problem(str(other)), f"{path}.dependentRequired")
        if not _FORMAT.fullmatch(str(schema.get("format", "date"))):
            raise SchemaRefused(f"{path}.format", "must be the name of a format")
        if "pattern" in schema:
            _check_pattern(schema["pattern"], f"{path}.pattern")
            # I18: a pattern looks like a path or an address soon enough, like a credential never.
            self._refuse(credential_problem(schema["pattern"]), f"{path}.pattern")

    def _name(self, name: str, path: str) -> None:
        if not _NAME.fullmatch(name):
            raise SchemaRefused(path, "a name must be 1 to 64 of A-Z, a-z, 0-9, _, . and -, a letter or _ first")
        self._refuse(key_problem(name) if self._shown else None, path)

    def _text_problem(self, text: str) -> str | None:
        return text_problem(text) if self._shown else credential_problem(text)

    def _data(self, value: object, path: str) -> None:
        if not self._shown:
            self._refuse(credential_problem(canonical_json(value).decode()), path)
            return
        for finding in findings(value, path):
            self._refuse(finding.what, finding.path)

    def _refuse(self, problem: str | None, path: str) -> None:
        if problem is not None:
            raise SchemaRefused(path, f"holds {problem}")


def schema_findings(presentation: Mapping[str, Any]) -> Iterator[Finding]:
    """What presentation hints may not hold; they are data and nothing else."""
    return findings(presentation, "presentation")


def _list(schema: Schema, keyword: str, path: str, *, or_text: bool = False) -> list[Any]:
    value = schema.get(keyword, [])
    if isinstance(value, str) and or_text:
        return [value]
    if not isinstance(value, list):
        raise SchemaRefused(f"{path}.{keyword}", "must be a list")
    return value


def _mapping(schema: Schema, keyword: str, path: str) -> Mapping[str, Any]:
    value = schema.get(keyword, {})
    if not isinstance(value, Mapping):
        raise SchemaRefused(f"{path}.{keyword}", "must be an object")
    return value


_UNBOUNDED: Final = re.compile(r"[*+]|\{\d*,\d*\}|\{\d{3,}\}")


def _check_pattern(pattern: object, path: str) -> None:
    """Admits what is matched in a bounded time: no repeated group, no reference back, no look-around, few repetitions and branches."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise SchemaRefused(path, f"must be a text of at most {MAX_PATTERN_CHARACTERS} characters")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        raise SchemaRefused(path, "is no regular expression") from None
    bare = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "c", re.sub(r"\\[^0-9]", "c", pattern))
    if re.search(r"\\\d|\(\?[^:]", bare):
        raise SchemaRefused(path, "must not use look-around, flags, names or references back")
    if re.search(r"\)(?:[*+]|\{)", bare):
        raise SchemaRefused(path, "must not repeat a group: that may take for ever to match")
    unbounded = len(_UNBOUNDED.findall(bare)) + (not pattern.startswith("^"))
    if unbounded > 2:
        raise SchemaRefused(path, "may hold two repetitions at most, or one if it does not start with ^")
    if len(re.findall(r"\||(?<!\()\?", bare)) > MAX_BRANCHES:
        raise SchemaRefused(path, f"may hold {MAX_BRANCHES} of ? and | at most: use enum for a choice")


def _closed(schema: Schema) -> dict[str, Any]:
    """Unknown keys are refused unless the schema itself says otherwise."""
    closed = dict(schema)
    if "properties" in closed:
        closed["properties"] = {name: _closed_child(child) for name, child in closed["properties"].items()}
    if "items" in closed:
        closed["items"] = _closed_child(closed["items"])
    closed.setdefault("type", "object")
    # Architecture, "Security": unknown keys are refused.
    closed.setdefault("additionalProperties", False)
    return closed


def _closed_child(schema: Any) -> Any:
    # Left alone where other schemas apply to the same object: they would each refuse what the other names.
    if not isinstance(schema, Mapping) or any(keyword in schema for keyword in ("$ref", "if", *_MANY[:3])):
        return schema
    child = dict(schema)
    if "items" in child:
        child["items"] = _closed_child(child["items"])
    return _closed(child) if "properties" in child else child


def _with_defaults(root: Schema, schema: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolved(root, schema)
    filled = dict(options)
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    for name, child in properties.items():
        child = _resolved(root, child)
        if name not in filled:
            if isinstance(child, Mapping) and "default" in child:
                filled[name] = child["default"]
        elif isinstance(filled[name], Mapping):
            filled[name] = _with_defaults(root, child, filled[name])
    return filled


def _resolved(root: Schema, schema: Any) -> Any:
    while isinstance(schema, Mapping) and "$ref" in schema and "default" not in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]  # acyclic, see _Walk
    return schema


def _json_path(path: str, elements: Any) -> str:
    for element in elements:
        path += f"[{element}]" if isinstance(element, int) else f".{element}"
    return path


def _issues_of(error: jsonschema.ValidationError, path: str) -> Iterator[FieldIssue]:
    # Never error.message: it quotes the value.
    where = _json_path(path, error.absolute_path)
    expected: Any = error.validator_value
    match error.validator:
        case "additionalProperties" if expected is False:
            known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
            allowed = ", ".join(sorted(known)[:20]) or "none"
            for name in error.instance if isinstance(error.instance, dict) else ():
                if name not in known:
                    yield FieldIssue(
                        f"{where}.{name}"[:512], "unknown_option", f"The harness has no such option; it has: {allowed}."
                    )
        case "required":
            for name in expected:
                if name not in error.instance:
                    yield FieldIssue(f"{where}.{name}", "required", "The harness requires this option.")
        case "type":
            types = expected if isinstance(expected, str) else " or ".join(expected)
            yield FieldIssue(where, "wrong_type", f"The value must be of type {types}.")
        case "enum":
            yield FieldIssue(where, "not_allowed", f"The value must be one of: {_shown(expected)}.")
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
            words = {
                "minimum": "at least",
                "maximum": "at most",
                "exclusiveMinimum": "more than",
                "exclusiveMaximum": "less than",
                "multipleOf": "a multiple of",
            }
            yield FieldIssue(where, "out_of_range", f"The value must be {words[error.validator]} {expected}.")
        case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
            bound = "at least" if error.validator.startswith("min") else "at most"
            yield FieldIssue(where, "out_of_range", f"The size must be {bound} {expected}.")
        case "pattern":
            yield FieldIssue(where, "wrong_form", f"The value must match {str(expected)[:200]}.")
        case keyword:
            yield FieldIssue(where, "invalid_option", f"The value does not meet the harness's rule {keyword}.")


def _shown(values: Any) -> str:
    return ", ".join(str(value)[:64] for value in list(values)[:20])
