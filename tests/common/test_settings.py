"""Settings: from the environment and files, refused with the name of what is wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, SecretStr

from services.common.errors import ConfigurationError
from services.common.settings import Address, CommaSeparated, ServiceSettings, settings_table
from tests.common.conftest import ROOT

GOOD = {
    "HARNESS_LISTEN": "unix:/run/x.sock",
    "HARNESS_DATA_DIR": "/data",
    "HARNESS_SERVICE_TOKENS": "first-token-0123456789, second-token-0123456789",
    "HARNESS_IDENTITY_KEY": "identity-key-0123456789",
}


class ToySettings(ServiceSettings):
    peers: Annotated[CommaSeparated, Field(description="Other ones.")] = ()
    sessions_address: Annotated[Address, Field(description="Where sessions is.")] = "unix:/run/sessions.sock"
    limits: Annotated[dict[str, int], Field(default_factory=dict, description="Limits as JSON.")]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def refusal() -> str:
    with pytest.raises(ConfigurationError) as caught:
        ToySettings.from_environment()
    return str(caught.value)


def test_settings_come_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HARNESS_PEERS", "a, b")
    settings = ToySettings.from_environment()
    assert settings.listen == "unix:/run/x.sock"
    assert settings.data_dir == Path("/data")
    assert [token.get_secret_value() for token in settings.service_tokens] == [
        "first-token-0123456789",
        "second-token-0123456789",
    ]
    assert settings.outgoing_token.get_secret_value() == "first-token-0123456789"
    assert settings.peers == ("a", "b")
    assert settings.identity().binding_id("o", "a", "c", 1).startswith("bnd_")


def test_secrets_come_from_files(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one-token-0123456789\nother-token-0123456789\n")
    (tmp_path / "key").write_text("key-from-a-file-0123456789\n")
    environment.delenv("HARNESS_SERVICE_TOKENS")
    environment.delenv("HARNESS_IDENTITY_KEY")
    environment.setenv("HARNESS_SERVICE_TOKENS_FILE", str(tmp_path / "tokens"))
    environment.setenv("HARNESS_IDENTITY_KEY_FILE", str(tmp_path / "key"))
    settings = ToySettings.from_environment()
    assert [token.get_secret_value() for token in settings.service_tokens] == [
        "one-token-0123456789",
        "other-token-0123456789",
    ]
    assert settings.identity_key.get_secret_value() == "key-from-a-file-0123456789"


@pytest.mark.parametrize("name", GOOD)
def test_i32_a_missing_setting_is_named(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.delenv(name)
    message = refusal()
    assert message.startswith(name)
    assert "is not set" in message


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("HARNESS_LISTEN", "nowhere", "expected unix:/path or host:port"),
        ("HARNESS_LISTEN", "unix:relative", "absolute path"),
        ("HARNESS_LISTEN", "unix:/" + "x" * 200, "shorter folder"),
        ("HARNESS_LISTEN", "host:70000", "host:port"),
        ("HARNESS_SESSIONS_ADDRESS", ":1", "host:port"),
        ("HARNESS_SERVICE_TOKENS", "canary-short", "at least 16"),
        ("HARNESS_SERVICE_TOKENS", "canary-with a space in it", "without spaces"),
        ("HARNESS_SERVICE_TOKENS", " , ", "at least one token"),
        ("HARNESS_IDENTITY_KEY", "canary", "at least 16 bytes"),
        ("HARNESS_LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("HARNESS_SHUTDOWN_GRACE_SECONDS", "-1", "greater than or equal to 0"),
        ("HARNESS_SHUTDOWN_GRACE_SECONDS", "nan", "HARNESS_SHUTDOWN_GRACE_SECONDS"),
        ("HARNESS_OTEL_ENABLED", "perhaps", "boolean"),
        ("HARNESS_MAX_CONCURRENT_RPCS", "0", "greater than or equal to 1"),
        ("HARNESS_ENVIRONMENT", "Prod!", "pattern"),
        ("HARNESS_LIMITS", "{canary", "expected JSON"),
    ],
)
def test_i32_a_wrong_setting_is_named_and_not_shown(
    environment: pytest.MonkeyPatch, name: str, value: str, part: str
) -> None:
    environment.setenv(name, value)
    message = refusal()
    assert part in message
    assert "canary" not in message
    assert name in message


def test_i32_all_problems_at_once(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HARNESS_LISTEN", "nowhere")
    environment.delenv("HARNESS_DATA_DIR")
    assert [line.split()[0].strip(":") for line in refusal().splitlines()] == ["HARNESS_LISTEN", "HARNESS_DATA_DIR"]


def test_i32_a_secret_file_that_cannot_be_read_is_named(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.delenv("HARNESS_IDENTITY_KEY")
    environment.setenv("HARNESS_IDENTITY_KEY_FILE", str(tmp_path / "absent"))
    assert "HARNESS_IDENTITY_KEY_FILE: cannot read" in refusal()
    (tmp_path / "absent").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal()
    (tmp_path / "absent").write_bytes(b"x" * 70_000)
    assert "larger than 65536 bytes" in refusal()


def test_i32_a_secret_from_two_places_is_refused(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("HARNESS_IDENTITY_KEY_FILE", str(tmp_path / "key"))
    assert "both set" in refusal()


def test_a_secret_is_in_no_repr(environment: pytest.MonkeyPatch) -> None:
    settings = ToySettings.from_environment()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "token-0123456789" not in shown
    assert "identity-key" not in shown


def test_settings_do_not_change(environment: pytest.MonkeyPatch) -> None:
    settings = ToySettings.from_environment()
    with pytest.raises(ValueError, match="frozen"):
        settings.identity_key = SecretStr("x")


def test_the_table_names_every_setting_and_shows_no_secret() -> None:
    table = settings_table(ToySettings)
    for name in ToySettings.model_fields:
        assert f"HARNESS_{name.upper()}" in table
    assert "`HARNESS_IDENTITY_KEY` or `HARNESS_IDENTITY_KEY_FILE` | secret | **required**" in table
    assert all(line.count(" | ") == 3 for line in table.splitlines()[2:])
    assert all(field.description for field in ToySettings.model_fields.values())


def test_i32_load_settings_exits_with_2() -> None:
    code = "from services.common.settings import *; load_settings(ServiceSettings)"
    environment = {**GOOD, "HARNESS_LISTEN": "nowhere", "HARNESS_IDENTITY_KEY": "canary", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("configuration error: HARNESS_LISTEN: expected unix:/path or host:port")
    assert "Traceback" not in ended.stderr
    assert "canary" not in ended.stderr
