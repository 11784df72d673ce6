"""`harness up --store-url`: where a mesh keeps its records, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.mesh.layout import layout_of
from cli.mesh.plan import Options, plan
from cli.mesh.secrets import secret_files
from cli.mesh.store import database_url
from services.common.errors import ConfigurationError

URL = "mongodb://someone:canary@db/harness"


def test_the_option_comes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    other = {"HARNESS_STORE_URL": "mongodb://other/db"}
    assert database_url(None, {}) == ""
    assert database_url(URL, other) == URL
    assert database_url(None, other) == "mongodb://other/db"
    assert database_url(None, {"HARNESS_STORE_URL_FILE": str(tmp_path / "url")}) == URL


@pytest.mark.parametrize(
    ("option", "environment", "said"),
    [
        ("sqlite:///canary/file", {}, "--store-url: a mesh takes mongodb://"),
        (None, {"HARNESS_STORE_URL": "sqlite:///canary/file"}, "HARNESS_STORE_URL: a mesh takes mongodb://"),
        (None, {"HARNESS_STORE_URL_FILE": "/nowhere/at/all"}, "HARNESS_STORE_URL_FILE: cannot read"),
        (None, {"HARNESS_STORE_URL": URL, "HARNESS_STORE_URL_FILE": "/nowhere"}, "both set"),
    ],
)
def test_i32_what_is_no_database_is_refused(option: str | None, environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        database_url(option, environment)
    assert "canary" not in str(caught.value)


def test_i18_only_what_keeps_records_is_told_the_address(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    layout.create(facades=1)
    # In the environment of the command it may be as well.
    options = Options(
        "127.0.0.1", 0, tmp_path / "harness.yaml", [], ["bus"], store_url=URL, environment={"HARNESS_STORE_URL": URL}
    )
    components = plan(layout, secret_files(layout.secrets), options)
    told = {component.service: component.environment.get("HARNESS_STORE_URL") for component in components}
    assert told == {"bus": None, "catalog": URL, "sessions": URL, "sandbox": URL, "runs": URL, "gateway": None}
    assert "canary" not in repr([options, components])
    assert all("canary" not in " ".join(component.command) for component in components)
