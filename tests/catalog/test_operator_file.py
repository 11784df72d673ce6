"""The operator file: every problem at once, with file and field, and nothing half-starts."""

import copy
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.catalog.operator_file import Operator, load_operator_file
from services.common.errors import ConfigurationError
from tests.catalog.processes import Catalog, end, operator, spawn, toy_entry

EXAMPLE = Path(__file__).parents[2] / "examples" / "harness.yaml"


def load(path: Path, environment: dict[str, str] | None = None) -> Operator:
    return load_operator_file(path, path.parent, environment or {})


def problems(path: Path, content: Any, environment: dict[str, str] | None = None) -> str:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(ConfigurationError) as caught:
        load(path, environment)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_example_is_valid(tmp_path: Path) -> None:
    found = load_operator_file(EXAMPLE, tmp_path, {})
    reference = found.adapters["reference"]
    assert reference.address == f"unix:{tmp_path}/run/adapter-reference.sock"
    assert reference.token is None
    assert list(reference.profiles) == ["default", "sandboxed", "faults"]
    assert reference.profiles["faults"].settings == {"allow_faults": True}
    assert found.retention_profiles == ("standard",)


def test_tokens_come_from_environment_or_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("file-token\n")
    path = tmp_path / "harness.yaml"
    entries = [
        toy_entry("one", token_env="ONE_TOKEN"),
        toy_entry("two", token_file=str(tmp_path / "token"), address="127.0.0.1:7001"),
    ]
    path.write_text(yaml.safe_dump(operator(*entries)))
    found = load(path, {"ONE_TOKEN": "env-token"})
    one, two = found.adapters["one"].token, found.adapters["two"].token
    assert one is not None
    assert two is not None
    assert (one.get_secret_value(), two.get_secret_value()) == ("env-token", "file-token")
    assert "env-token" not in repr(found)
    assert found.adapters["two"].address == "127.0.0.1:7001"


def test_i32_all_problems_are_told_at_once(tmp_path: Path) -> None:
    document = operator(toy_entry(), toy_entry("other"), toy_entry())
    adapters = document["adapters"]
    adapters[0]["profiles"][0]["placement"] = "anywhere"
    adapters[0]["profiles"][1]["sandbox"]["memory_mib"] = "512"
    adapters[1]["profiles"].append(copy.deepcopy(adapters[1]["profiles"][0]))
    adapters[1]["sockets"] = 1
    adapters[2]["profiles"][2]["sandbox"] = {"worker_module": "x"}
    document["colour"] = "red"
    text = problems(tmp_path / "harness.yaml", document)
    for expected in (
        "adapters[0].profiles[0].placement: ",
        "adapters[0].profiles[1].sandbox.memory_mib: ",
        "adapters[1].profiles[3].id: 'default' is already that of adapters[1].profiles[0]",
        "adapters[1].sockets: there is no such key",
        "adapters[2].harness_id: 'toy' is already that of adapters[0]",
        "adapters[2].profiles[2]: placement sandbox_pod needs a sandbox section",
        "colour: there is no such key",
    ):
        assert expected in text
    assert len(text.splitlines()) == 7


def changed(**changes: Any) -> dict[str, Any]:
    return operator(toy_entry(**changes))


def with_profile(**changes: Any) -> dict[str, Any]:
    return operator(toy_entry(profiles=[{"id": "default", "placement": "provider_managed"} | changes]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the file: "),
        ("[]", "the file: "),
        ("version: 2\nadapters: []", "version: "),
        ("adapters: []", "version: is missing"),
        ("version: 1\nversion: 1", "line 2, column 1: the key 'version' is given twice"),
        ("a: &a [x]\nb: *a", "anchors and aliases are not allowed"),
        ("a: !!python/object:os.system x", "tags are not allowed"),
        ("a: [", "line 1"),
        (b"\xff\xfe\xff", "not UTF-8"),
        ("a: \0", "not valid YAML"),
        ("[" * 100 + "]" * 100, "nested more than 16 deep"),
        ("a: " + "1" * 5000, "not valid YAML"),
        ("- a\n" * 30_000, "more than 20000 values"),
        ("#" * 600_000, "larger than"),
        (changed(harness_id="../etc"), "adapters[0].harness_id: "),
        (changed(address="unix:" + "x" * 200), "adapters[0].address: the socket path has"),
        (changed(address="nowhere"), "adapters[0].address: expected unix:/path or host:port"),
        (changed(token_env="MISSING"), "adapters[0].token_env: the environment variable MISSING is not set"),
        (changed(token_file="/no/such/file"), "adapters[0].token_file: '/no/such/file' cannot be read"),
        (changed(token_env="A", token_file="b"), "token_env and token_file are both set"),
        (changed(profiles=[]), "adapters[0].profiles: "),
        (with_profile(description="see https://example.test"), "profiles[0].description: holds an address"),
        (with_profile(display_name="<b>"), "profiles[0].display_name: holds markup"),
        (with_profile(settings={"x": float("nan")}), "settings.x is not a finite number"),
        (with_profile(settings={"x": 1 << 60}), "settings.x is beyond 2^53"),
        (with_profile(placement="sandbox_pod"), "needs a sandbox section"),
        (with_profile(limits={"max_run_seconds": 0}), "limits.max_run_seconds: "),
        (operator(retention_profiles=[]), "retention_profiles: "),
    ],
)
def test_i32_a_bad_file_is_refused_with_its_field(tmp_path: Path, content: Any, expected: str) -> None:
    assert expected in problems(tmp_path / "harness.yaml", content)


def test_i32_a_missing_file_is_told_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"HARNESS_CONFIG_FILE: .*none\.yaml cannot be read"):
        load(tmp_path / "none.yaml")


async def test_i32_a_bad_file_stops_the_service_before_anything_is_made(folder: Path) -> None:
    catalog = Catalog(folder)
    catalog.write_config(operator(toy_entry(), toy_entry()))
    process, line = await spawn([sys.executable, "-m", "services.catalog"], catalog.environment(), catalog.log)
    assert line == ""
    assert await end(process) == 2
    assert "adapters[1].harness_id: 'toy' is already that of adapters[0]" in catalog.log.read_text()
    assert "Traceback" not in catalog.log.read_text()
    assert set(os.listdir(folder)) == {"a.log", "harness.yaml", "run"}


async def test_i32_a_missing_setting_is_named(folder: Path) -> None:
    catalog = Catalog(folder)
    environment = catalog.environment()
    del environment["HARNESS_CONFIG_FILE"]
    process, _ = await spawn([sys.executable, "-m", "services.catalog"], environment, catalog.log)
    assert await end(process) == 2
    assert "HARNESS_CONFIG_FILE is not set" in catalog.log.read_text()
