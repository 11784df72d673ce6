"""Reading blueprints: the same values from YAML and JSON, the line of each, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.documents import Document, read_document, read_text
from cli.errors import CommandError, ExitCode

ROOT = Path(__file__).parents[2]
KEYS = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(["yes", "no", "on", "1:30", "2024-01-01", "0x1f", "~", "null", "1_000", "<<", "=", "007"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
)


class _Quoting(yaml.SafeDumper):
    """Quotes every text: this one would leave texts plain that are numbers to us, as 0E0."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def written(folder: Path, data: bytes | str, name: str = "agent.yaml") -> str:
    file = folder / name
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(file)


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_yaml_and_json_are_the_same_document(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert read_document(written(folder, yaml.dump(value, Dumper=_Quoting, allow_unicode=True))).value == value
    assert read_document(written(folder, json.dumps(value), "agent.json")).value == value
    assert read_document(written(folder, json.dumps(value, indent=1))).value == value


def test_the_example_is_read() -> None:
    document = read_document(str(ROOT / "examples" / "agents" / "agent-example.yaml"))
    assert document.value["harness"] == {"id": "reference", "profile_id": "default", "options": {}}
    assert document.value["limits"] == {"max_run_seconds": 900, "max_tool_calls": 50}


def test_every_value_has_its_line(tmp_path: Path) -> None:
    tools = "tools:\n  bindings:\n    - tool_id: x\n    - tool_id: y\n      approval_policy: never\n"
    text = f"id: a\n{tools}limits: {{\n  max_run_seconds: 1}}\nprompt:\n  variables:\n    who: me\n"
    document = read_document(written(tmp_path, text))
    lines = {
        "id": 1,
        "tools.bindings[1].tool_id": 5,
        "tools.bindings[1].approval_policy": 6,
        "limits.max_run_seconds": 8,
        'prompt.variables["who"]': 11,
    }
    assert {path: document.line(path) for path in lines} == lines
    # What is not there is near what is.
    assert document.line("tools.bindings[0].nothing") == 4
    assert document.line("tools.bindings[9]") == 3
    assert document.line('prompt.variables["a.b]c"]') == 10
    assert document.line("nothing") == 1
    assert Document("f", {}).line("a[0].b") == 0


def test_plain_text_stays_text(tmp_path: Path) -> None:
    text = "a: no\nb: 2024-01-01\nc: 1:30\nd: 0x10\ne: '1'\nf: 1\ng: 1.5\nh: true\ni: ~\nj:\n"
    expected = {
        "a": "no",
        "b": "2024-01-01",
        "c": "1:30",
        "d": "0x10",
        "e": "1",
        "f": 1,
        "g": 1.5,
        "h": True,
        "i": None,
        "j": None,
    }
    assert read_document(written(tmp_path, text)).value == expected


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n"


@pytest.mark.parametrize(
    ("data", "name", "line", "says"),
    [
        (BOMB, "a.yaml", 1, "anchors"),
        ("a: 1\nb: !!python/object:os.system x\n", "a.yaml", 2, "tags"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml", 3, "twice"),
        ("a: 1\nb: [1\nc: 2\n", "a.yaml", 3, "not valid YAML"),
        ("a: 1\nb: x\0y\n", "a.yaml", 2, "does not allow"),
        (b"a: 1\nb: \xff\n", "a.yaml", 2, "UTF-8"),
        ("a: 1\nb: .inf\n", "a.yaml", 2, "no number"),
        ("b: 1e999\n", "a.yaml", 1, "no number"),
        ("a: 1\n? [x]\n: 1\n", "a.yaml", 2, "key is not text"),
        ("a: 1\n---\nb: 2\n", "a.yaml", 2, "not valid YAML"),
        ("- a\n", "a.yaml", 1, "not a mapping"),
        ("just text\n", "a.yaml", 1, "not a mapping"),
        ("", "a.yaml", 0, "empty"),
        ("a: " + "[" * 40 + "]" * 40, "a.yaml", 1, "deep"),
        ("[" * 100_000, "a.yaml", 1, "deep"),
        ("a: [" + "1," * 30_000 + "]", "a.yaml", 1, "values"),
        ("#" * (1024 * 1024 + 1), "a.yaml", 0, "larger"),
        ('{"a": 1,\n "b": }', "a.json", 2, "JSON"),
        ('{"a": 1, "a": 2}', "a.json", 0, "twice"),
        ('{"a": NaN}', "a.json", 0, "no JSON"),
        ('{"a": 1' + "0" * 5000 + "}", "a.json", 0, "digits"),
        ('{"a":' * 40 + "1" + "}" * 40, "a.json", 0, "deep"),
        ('{"a":' * 100_000, "a.json", 0, "deep"),
        ("[1]", "a.json", 1, "not a mapping"),
        (b"\xff\xfe", "a.json", 1, "UTF-8"),
    ],
)
def test_what_is_no_blueprint_is_refused_with_its_place(
    tmp_path: Path, data: bytes | str, name: str, line: int, says: str
) -> None:
    file = written(tmp_path, data, name)
    with pytest.raises(CommandError) as caught:
        read_document(file)
    error = caught.value
    assert error.exit_code is ExitCode.USAGE
    assert says in error.message
    assert error.message.startswith(f"{file}, line {line}: " if line else f"{file}: ")
    assert len(error.message) < 400 + len(file)


@pytest.mark.parametrize("name", ["none.yaml", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        read_document(str(tmp_path / name) if name != "a\0b" else name)


def test_i35_a_context_has_a_bound(tmp_path: Path) -> None:
    file = written(tmp_path, "ä" * 11)
    assert read_text(file, 11) == "ä" * 11
    with pytest.raises(CommandError, match="longer than 10"):
        read_text(file, 10)
